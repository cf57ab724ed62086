//! The attributes of Counterfoil.
//!
//! # Promise
//! `#[task]`: the function stays as it is and can be called and tested directly. Beside it stands a
//! record that `Builder::discover_tasks` finds.
//!
//! `#[guarded]`: the function takes effect once for its key, and says so in what it answers.

mod guarded;

use proc_macro::TokenStream;
use quote::quote;
use syn::parse::{Parse, ParseStream};
use syn::{FnArg, ItemFn, LitInt, LitStr, Token, Type, parse_macro_input};

struct Attributes {
    scene: LitStr,
    description: Option<LitStr>,
    concurrency: Option<LitInt>,
    max_attempts: Option<LitInt>,
    compensation: Option<LitStr>,
}

impl Parse for Attributes {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let mut found = Self {
            scene: LitStr::new("", input.span()),
            description: None,
            concurrency: None,
            max_attempts: None,
            compensation: None,
        };
        while !input.is_empty() {
            let name: syn::Ident = input.parse()?;
            input.parse::<Token![=]>()?;
            match name.to_string().as_str() {
                "scene" => found.scene = input.parse()?,
                "description" => found.description = Some(input.parse()?),
                "concurrency" => found.concurrency = Some(input.parse()?),
                "max_attempts" => found.max_attempts = Some(input.parse()?),
                "compensation" => found.compensation = Some(input.parse()?),
                other => {
                    let known = "scene, description, concurrency, max_attempts, compensation";
                    return Err(syn::Error::new(
                        name.span(),
                        format!("unknown setting `{other}`: use one of {known}"),
                    ));
                }
            }
            if !input.is_empty() {
                input.parse::<Token![,]>()?;
            }
        }
        if found.scene.value().is_empty() {
            return Err(input.error("name the scene: #[task(scene = \"notify-fulfilment\")]"));
        }
        Ok(found)
    }
}

/// Registers an async function as the handler of a scene.
///
/// The function takes one `Task<T>` and answers `Result<(), TaskError>`.
#[proc_macro_attribute]
pub fn task(attributes: TokenStream, item: TokenStream) -> TokenStream {
    let attributes = parse_macro_input!(attributes as Attributes);
    let function = parse_macro_input!(item as ItemFn);
    expand(&attributes, &function)
        .unwrap_or_else(|e| e.to_compile_error())
        .into()
}

/// Makes an async function take effect once for its key.
///
/// | setting | what it is |
/// |---|---|
/// | `guard = …` | a `Guard`, or something that leads to one |
/// | `key = …` | a `Key`; `?` may be used |
/// | `payload = …` | what decides whether a repeat asks for the same: anything that is `Serialize` |
/// | `leased` | leased mode; without it transactional mode |
///
/// The settings may use the arguments. The function is written with one argument more, the first
/// one, which comes from the guard: `tx: &mut Transaction<'static, …>`, or in leased mode
/// `claim: Claimed`. It answers `Result<T, Failure<E>>`; callers get
/// `Result<Outcome<T, E>, GuardError>`.
#[proc_macro_attribute]
pub fn guarded(settings: TokenStream, item: TokenStream) -> TokenStream {
    let settings = parse_macro_input!(settings as guarded::Settings);
    let function = parse_macro_input!(item as ItemFn);
    guarded::expand(&settings, &function)
        .unwrap_or_else(|e| e.to_compile_error())
        .into()
}

fn expand(attributes: &Attributes, function: &ItemFn) -> syn::Result<proc_macro2::TokenStream> {
    check(function)?;
    let (name, scene) = (&function.sig.ident, &attributes.scene);
    let description = attributes.description.iter();
    let concurrency = attributes.concurrency.iter();
    let max_attempts = attributes.max_attempts.iter();
    let compensation = attributes.compensation.iter();
    Ok(quote! {
        #function

        ::counterfoil::discovery::submit! {
            ::counterfoil::discovery::Discovered {
                scene: #scene,
                register: |tasks| {
                    #[allow(unused_mut)]
                    let mut options = ::counterfoil::TaskOptions::default();
                    #(options.description = ::std::string::String::from(#description);)*
                    #(options.concurrency = #concurrency;)*
                    #(options.backoff = ::counterfoil::discovery::with_attempts(options.backoff, #max_attempts);)*
                    #(options.compensation = ::std::option::Option::Some(::std::string::String::from(#compensation));)*
                    tasks.add(#scene, options, #name)
                },
            }
        }
    })
}

fn check(function: &ItemFn) -> syn::Result<()> {
    let signature = &function.sig;
    if signature.asyncness.is_none() {
        return Err(syn::Error::new_spanned(
            signature.fn_token,
            "a task handler is an async function",
        ));
    }
    let arguments: Vec<&FnArg> = signature.inputs.iter().collect();
    match arguments.as_slice() {
        [FnArg::Typed(argument)] if matches!(*argument.ty, Type::Path(_)) => Ok(()),
        _ => Err(syn::Error::new_spanned(
            &signature.inputs,
            "a task handler takes one argument: a Task<T>",
        )),
    }
}
