//! The `#[guarded]` attribute: a function that takes effect once for its key.

use proc_macro2::{Span, TokenStream};
use quote::{format_ident, quote};
use syn::parse::{Parse, ParseStream};
use syn::{Expr, FnArg, Ident, ItemFn, Pat, ReturnType, Token};

const KNOWN: &str = "guard, key, payload, leased";

pub(crate) struct Settings {
    guard: Expr,
    key: Expr,
    payload: Expr,
    leased: bool,
}

impl Parse for Settings {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let (mut guard, mut key, mut payload, mut leased) = (None, None, None, false);
        while !input.is_empty() {
            let name: Ident = input.parse()?;
            let place = match name.to_string().as_str() {
                "guard" => Some(&mut guard),
                "key" => Some(&mut key),
                "payload" => Some(&mut payload),
                "leased" => None,
                other => {
                    let why = format!("unknown setting `{other}`: use one of {KNOWN}");
                    return Err(syn::Error::new(name.span(), why));
                }
            };
            match place {
                None => leased = true,
                Some(place) => {
                    input.parse::<Token![=]>()?;
                    if place.replace(input.parse()?).is_some() {
                        let why = format!("`{name}` is said twice");
                        return Err(syn::Error::new(name.span(), why));
                    }
                }
            }
            if !input.is_empty() {
                input.parse::<Token![,]>()?;
            }
        }
        let missing = |what: &str| {
            let why = format!("`{what}` is missing: #[guarded(guard = …, key = …, payload = …)]");
            syn::Error::new(Span::call_site(), why)
        };
        Ok(Self {
            guard: guard.ok_or_else(|| missing("guard"))?,
            key: key.ok_or_else(|| missing("key"))?,
            payload: payload.ok_or_else(|| missing("payload"))?,
            leased,
        })
    }
}

/// The arguments of the function as it was written: what comes from the guard, and the others.
struct Arguments<'a> {
    others: Vec<&'a FnArg>,
    names: Vec<Ident>,
}

pub(crate) fn expand(settings: &Settings, function: &ItemFn) -> syn::Result<TokenStream> {
    let signature = &function.sig;
    let (answer, arguments) = (check(function)?, arguments(settings, function)?);
    let (attributes, visibility, body) = (&function.attrs, &function.vis, &function.block);
    let (generics, condition) = (&signature.generics, &signature.generics.where_clause);
    let (name, inputs) = (&signature.ident, &signature.inputs);
    let (others, names) = (plain(&arguments.others), &arguments.names);
    let business = format_ident!("__guarded_{}", name);
    let Settings {
        guard,
        key,
        payload,
        ..
    } = settings;
    // Names that nothing in the attribute can mean.
    let own = |name: &str| Ident::new(name, Span::mixed_site());
    let (the_guard, the_key, asked) = (own("guard"), own("key"), own("asked"));
    let (run, context, work, done) = (own("run"), own("context"), own("work"), own("done"));
    let call = if settings.leased {
        quote! {
            #the_guard
                .leased_asked(&#the_key, &#asked, move |#run| #business(#run, #(#names),*))
                .await
        }
    } else {
        quote! {
            let mut #run = match #the_guard.begin_asked(&#the_key, &#asked).await?.fresh() {
                ::core::result::Result::Ok(#run) => #run,
                ::core::result::Result::Err(#done) => return ::core::result::Result::Ok(#done),
            };
            let #context = #run.context();
            let #work = #business(#run.tx(), #(#names),*);
            let #done = #the_guard.limited(#context.scope(#work)).await;
            #run.finish(#done).await
        }
    };
    Ok(quote! {
        #(#attributes)*
        #visibility async fn #name #generics (#(#others),*) -> ::counterfoil::guard::Guarded<#answer>
        #condition
        {
            async fn #business #generics (#inputs) -> #answer #condition {
                // The settings may be all that uses them.
                #(let _ = &#names;)*
                #body
            }

            let #the_guard = &(#guard);
            let #the_key: ::counterfoil::Key = #key;
            let #asked = ::counterfoil::guard::asked(&(#payload))?;
            #call
        }
    })
}

fn check(function: &ItemFn) -> syn::Result<&syn::Type> {
    let signature = &function.sig;
    if signature.asyncness.is_none() {
        let why = "a guarded function is an async function";
        return Err(syn::Error::new_spanned(signature.fn_token, why));
    }
    match &signature.output {
        ReturnType::Type(_, answer) => Ok(answer),
        ReturnType::Default => Err(syn::Error::new_spanned(
            &signature.ident,
            "a guarded function answers `Result<T, Failure<E>>`",
        )),
    }
}

fn arguments<'a>(settings: &Settings, function: &'a ItemFn) -> syn::Result<Arguments<'a>> {
    let signature = &function.sig;
    let mut inputs = signature.inputs.iter();
    match inputs.next() {
        Some(FnArg::Typed(_)) => {}
        Some(FnArg::Receiver(this)) => {
            let why = "a guarded function has no `self`: guard a function, and call it from here";
            return Err(syn::Error::new_spanned(this, why));
        }
        None => {
            let why = if settings.leased {
                "the first argument is what the guard gives: `claim: Claimed`"
            } else {
                "the first argument is what the guard gives: `tx: &mut Transaction<'static, …>`"
            };
            return Err(syn::Error::new_spanned(&signature.ident, why));
        }
    }
    let mut found = Arguments {
        others: Vec::new(),
        names: Vec::new(),
    };
    for input in inputs {
        match input {
            FnArg::Typed(argument) => match &*argument.pat {
                Pat::Ident(named) if named.subpat.is_none() && named.by_ref.is_none() => {
                    found.others.push(input);
                    found.names.push(named.ident.clone());
                }
                other => {
                    let why = "give this argument a name, and take it apart in the function";
                    return Err(syn::Error::new_spanned(other, why));
                }
            },
            FnArg::Receiver(this) => {
                return Err(syn::Error::new_spanned(this, "`self` comes first"));
            }
        }
    }
    Ok(found)
}

/// The same arguments without `mut`: only the function itself changes them.
fn plain(arguments: &[&FnArg]) -> Vec<FnArg> {
    let plain = |argument: &&FnArg| {
        let mut argument = (*argument).clone();
        if let FnArg::Typed(typed) = &mut argument
            && let Pat::Ident(named) = &mut *typed.pat
        {
            named.mutability = None;
        }
        argument
    };
    arguments.iter().map(plain).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a surprise ends the test")]
mod tests {
    use super::*;

    const GOOD: &str = "guard = g, key = k, payload = p";

    fn wrong(settings: &str, function: &str) -> String {
        let expanded = syn::parse_str::<Settings>(settings)
            .and_then(|settings| expand(&settings, &syn::parse_str(function).unwrap()));
        expanded.unwrap_err().to_string()
    }

    #[test]
    fn a_setting_that_is_missing_unknown_or_said_twice_is_named() {
        let good = "async fn f(tx: &mut T) -> A {}";

        assert!(wrong("guard = g, key = k", good).starts_with("`payload` is missing"));
        assert!(wrong("", good).starts_with("`guard` is missing"));
        assert!(wrong("scope = s", good).contains("unknown setting `scope`: use one of guard"));
        assert!(wrong("key = a, key = b", good).contains("`key` is said twice"));
    }

    #[test]
    fn a_function_that_cannot_be_guarded_says_why() {
        for (function, why) in [
            ("fn f(tx: &mut T) -> A {}", "async function"),
            ("async fn f(tx: &mut T) {}", "Result<T, Failure<E>>"),
            ("async fn f() -> A {}", "tx: &mut Transaction"),
            ("async fn f(&self) -> A {}", "no `self`"),
            ("async fn f(tx: &mut T, (a, b): P) -> A {}", "a name"),
        ] {
            assert!(wrong(GOOD, function).contains(why), "{function}");
        }
        let leased = format!("leased, {GOOD}");
        assert!(wrong(&leased, "async fn f() -> A {}").contains("claim: Claimed"));
    }
}
