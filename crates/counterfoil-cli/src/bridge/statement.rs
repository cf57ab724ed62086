//! A statement with named parameters, as it stands in the configuration file.
//!
//! # Promise
//! A parameter is always bound. Nothing of a message ever becomes a part of the statement's text:
//! the text depends on the configuration and on the database alone. What stands in quotes or
//! comments is left as it is.

use std::fmt::{self, Write as _};

use crate::args::Dialect;

/// The words that a statement may begin with. Others would end the transaction, or do nothing.
const VERBS: [&str; 8] = [
    "INSERT", "UPDATE", "DELETE", "REPLACE", "MERGE", "WITH", "CALL", "SELECT",
];
/// Those that do not tell how many rows they have changed.
const SILENT: [&str; 2] = ["CALL", "SELECT"];

/// What a parameter stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Parameter {
    Id,
    EventType,
    AggregateType,
    AggregateId,
    Version,
    Payload,
    Headers,
    Position,
    /// A JSON pointer (RFC 6901) into the payload.
    Body(String),
}

impl Parameter {
    const NAMES: &'static str = ":id, :type, :aggregate_type, :aggregate_id, :version, :payload, :headers, :position and \
         :body/POINTER";

    fn named(name: &str) -> Option<Self> {
        Some(match name {
            "id" => Parameter::Id,
            "type" => Parameter::EventType,
            "aggregate_type" => Parameter::AggregateType,
            "aggregate_id" => Parameter::AggregateId,
            "version" => Parameter::Version,
            "payload" => Parameter::Payload,
            "headers" => Parameter::Headers,
            "position" => Parameter::Position,
            _ => match name.strip_prefix("body") {
                Some(pointer) if pointer.starts_with('/') => Parameter::Body(pointer.to_owned()),
                _ => return None,
            },
        })
    }
}

/// Why a text is no statement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Wrong {
    Verb(String),
    Parameter(String),
    Open(&'static str),
    Several,
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Wrong::Verb(word) => write!(
                f,
                "the statement begins with {word:?}: it must be one of {}",
                VERBS.join(", ")
            ),
            Wrong::Parameter(name) => {
                write!(
                    f,
                    "there is no parameter `:{name}`: there are {}",
                    Parameter::NAMES
                )
            }
            Wrong::Open(what) => write!(f, "{what} is not closed"),
            Wrong::Several => f.write_str("there is more than one statement: use a procedure"),
        }
    }
}

/// One statement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Statement {
    /// The texts around the parameters: one more than there are.
    pieces: Vec<String>,
    parameters: Vec<Parameter>,
    silent: bool,
}

impl Statement {
    pub(crate) fn parse(text: &str) -> Result<Self, Wrong> {
        let text = text.trim();
        let word: String = text.chars().take_while(|c| c.is_alphabetic()).collect();
        let is = |verb: &&str| word.eq_ignore_ascii_case(verb);
        if !VERBS.iter().any(is) {
            let shown = text.split_whitespace().next().unwrap_or_default();
            return Err(Wrong::Verb(shown.chars().take(40).collect()));
        }
        let mut parser = Parser {
            rest: text,
            piece: String::new(),
            pieces: Vec::new(),
            parameters: Vec::new(),
        };
        parser.run()?;
        Ok(Self {
            pieces: parser.pieces,
            parameters: parser.parameters,
            silent: SILENT.iter().any(is),
        })
    }

    /// What its parameters stand for, in their order.
    pub(crate) fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    /// Whether it tells how many rows it has changed.
    pub(crate) fn tells_rows(&self) -> bool {
        !self.silent
    }

    /// With the placeholders of a database.
    pub(crate) fn text(&self, dialect: Dialect) -> String {
        self.with(|n, out| {
            let _ = match dialect {
                Dialect::Postgres => write!(out, "${n}"),
                Dialect::Sqlite | Dialect::Mysql => write!(out, "?"),
            };
        })
    }

    /// For PostgreSQL, which wants to know of what type a parameter is: each is a text that the
    /// database converts to the type that it has found itself.
    pub(crate) fn cast(&self, types: &[String]) -> String {
        self.with(|n, out| {
            let _ = match types.get(n - 1) {
                Some(kind) => write!(out, "CAST(${n}::text AS {kind})"),
                None => write!(out, "${n}"),
            };
        })
    }

    fn with(&self, mut placeholder: impl FnMut(usize, &mut String)) -> String {
        let mut out = String::new();
        for (n, piece) in self.pieces.iter().enumerate() {
            if n > 0 {
                placeholder(n, &mut out);
            }
            out.push_str(piece);
        }
        out
    }
}

struct Parser<'a> {
    rest: &'a str,
    piece: String,
    pieces: Vec<String>,
    parameters: Vec<Parameter>,
}

impl Parser<'_> {
    fn run(&mut self) -> Result<(), Wrong> {
        while let Some(first) = self.rest.chars().next() {
            match first {
                '\'' => self.quoted('\'', "a text in quotes")?,
                '"' => self.quoted('"', "a name in quotes")?,
                '`' => self.quoted('`', "a name in quotes")?,
                '-' if self.rest.starts_with("--") => self.take(self.until("\n")),
                '/' if self.rest.starts_with("/*") => {
                    let end = self.rest.find("*/").ok_or(Wrong::Open("a comment"))?;
                    self.take(end + 2);
                }
                '$' => self.dollar()?,
                ';' if self.rest[1..].trim().is_empty() => break,
                ';' => return Err(Wrong::Several),
                // A cast, and an assignment.
                ':' if self.rest.starts_with("::") || self.rest.starts_with(":=") => self.take(2),
                ':' => self.parameter()?,
                other => self.take(other.len_utf8()),
            }
        }
        self.pieces.push(std::mem::take(&mut self.piece));
        Ok(())
    }

    fn take(&mut self, bytes: usize) {
        let (taken, rest) = self.rest.split_at(bytes);
        self.piece.push_str(taken);
        self.rest = rest;
    }

    fn until(&self, end: &str) -> usize {
        self.rest.find(end).unwrap_or(self.rest.len())
    }

    /// A doubled quote inside is one that ends, and one that begins again.
    fn quoted(&mut self, quote: char, what: &'static str) -> Result<(), Wrong> {
        let end = self.rest[1..].find(quote).ok_or(Wrong::Open(what))?;
        let inside = &self.rest[1..=end];
        // Whether it ends here is for some databases a setting. Nobody needs to know.
        if quote == '\'' && inside.ends_with('\\') {
            return Err(Wrong::Open("a text that ends with a backslash"));
        }
        self.take(end + 2);
        Ok(())
    }

    /// A text between dollars, as PostgreSQL has it.
    fn dollar(&mut self) -> Result<(), Wrong> {
        let name = |c: char| c.is_alphanumeric() || c == '_';
        let end = self.rest[1..].find(|c| !name(c)).map(|end| end + 1);
        let tag = match end {
            Some(end) if self.rest[end..].starts_with('$') => &self.rest[..=end],
            _ => {
                self.take(1);
                return Ok(());
            }
        };
        let open = Wrong::Open("a text between dollars");
        let length = self.rest[tag.len()..].find(tag).ok_or(open)?;
        self.take(length + 2 * tag.len());
        Ok(())
    }

    fn parameter(&mut self) -> Result<(), Wrong> {
        let rest = &self.rest[1..];
        // In braces, for a pointer with other signs than letters and digits.
        let (name, length) = match rest.strip_prefix('{') {
            Some(inside) => {
                let end = inside
                    .find('}')
                    .ok_or(Wrong::Open("a parameter in braces"))?;
                (&inside[..end], end + 3)
            }
            None => {
                let end = bare(rest);
                (&rest[..end], end + 1)
            }
        };
        // Not a name: the bounds of an array, for example.
        if !rest.starts_with('{') && !name.starts_with(|c: char| c.is_alphabetic() || c == '_') {
            self.take(1);
            return Ok(());
        }
        let found = Parameter::named(name);
        let shown = || Wrong::Parameter(name.chars().take(60).collect());
        self.parameters.push(found.ok_or_else(shown)?);
        self.pieces.push(std::mem::take(&mut self.piece));
        self.rest = &self.rest[length..];
        Ok(())
    }
}

/// Where a name ends. A slash belongs to it only behind `body`.
fn bare(rest: &str) -> usize {
    let in_body = rest.starts_with("body/");
    let belongs = |c: char| c.is_alphanumeric() || c == '_' || (in_body && matches!(c, '/' | '~'));
    rest.find(|c| !belongs(c)).unwrap_or(rest.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> (String, Vec<Parameter>) {
        let statement = Statement::parse(text).unwrap();
        (statement.text(Dialect::Postgres), statement.parameters)
    }

    fn body(pointer: &str) -> Parameter {
        Parameter::Body(pointer.into())
    }

    #[test]
    fn names_become_placeholders_in_their_order() {
        let (text, parameters) = parsed(
            "INSERT INTO paid (id, total, half) VALUES (:id, :body/order/total, :version/2);",
        );

        assert_eq!(
            text,
            "INSERT INTO paid (id, total, half) VALUES ($1, $2, $3/2)"
        );
        let expected = [Parameter::Id, body("/order/total"), Parameter::Version];
        assert_eq!(parameters, expected);
        let (text, parameters) = parsed("update a set b = :{body/a-b/c d}-1, c=:body/lines/0~1x");
        assert_eq!(text, "update a set b = $1-1, c=$2");
        assert_eq!(parameters, [body("/a-b/c d"), body("/lines/0~1x")]);
    }

    #[test]
    fn every_database_has_its_own_placeholders() {
        let statement = Statement::parse("CALL apply(:id, :type)").unwrap();

        assert_eq!(statement.text(Dialect::Sqlite), "CALL apply(?, ?)");
        assert_eq!(statement.text(Dialect::Mysql), "CALL apply(?, ?)");
        assert_eq!(
            statement.cast(&["uuid".into(), "text".into()]),
            "CALL apply(CAST($1::text AS uuid), CAST($2::text AS text))"
        );
        assert!(!statement.tells_rows());
    }

    #[test]
    fn what_is_quoted_or_means_something_else_stays() {
        for text in [
            "UPDATE a SET b = 'it''s :id'",
            "UPDATE \"a:id\" SET `b:id` = 1",
            "UPDATE a SET b = 1 -- :id",
            "UPDATE a /* :id ; */ SET b = 1",
            "UPDATE a SET b = $$ :id $$ || $x$ :id $$ ; $x$",
            "UPDATE a SET b = '7'::int, c = d[1:2], e = f[:2]",
            "SELECT @x := 1",
        ] {
            assert_eq!(parsed(text), (text.to_owned(), vec![]), "{text}");
        }
    }

    #[test]
    fn what_is_no_statement_is_refused_with_the_reason() {
        for (text, expected) in [
            ("", "begins with \"\""),
            ("DROP TABLE a", "begins with \"DROP\""),
            ("commit", "begins with \"commit\""),
            ("UPDATE a SET b = :ident", "no parameter `:ident`"),
            ("UPDATE a SET b = :body", "no parameter `:body`"),
            ("UPDATE a SET b = :{id", "a parameter in braces is not"),
            ("UPDATE a SET b = 'x", "a text in quotes is not closed"),
            ("UPDATE a SET b = '\\' :id'", "ends with a backslash"),
            ("UPDATE a SET b = $$x", "a text between dollars is not"),
            ("UPDATE a /* x", "a comment is not closed"),
            ("DELETE FROM a; DELETE FROM b", "more than one statement"),
        ] {
            let wrong = Statement::parse(text).unwrap_err().to_string();
            assert!(wrong.contains(expected), "{text}: {wrong}");
        }
    }
}
