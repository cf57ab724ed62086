//! Values as text in a statement, for messages that cannot carry parameters.
//!
//! # Promise
//! What is put in comes out as it is, whatever it holds and however the session is set: nothing in a
//! text can end it.

use std::fmt::{Display, Write as _};

use counterfoil_core::hex::Hex;

/// A list of values with commas.
#[derive(Debug, Default)]
pub(crate) struct Values(pub(crate) String);

impl Values {
    pub(crate) fn number(&mut self, value: Option<impl Display>) {
        self.separate();
        match value {
            // In brackets, because of a sign.
            Some(value) => {
                let _ = write!(self.0, "({value})");
            }
            None => self.0.push_str("NULL"),
        }
    }

    /// Text between dollars means itself, up to the same name between dollars.
    pub(crate) fn text(&mut self, value: Option<&str>) {
        self.separate();
        let Some(value) = value else {
            return self.0.push_str("NULL");
        };
        // Without the last dollar, which may be the first one of the end.
        let mut tag = String::from("$c");
        while value.contains('$') && value.contains(&tag) {
            tag.push('c');
        }
        for part in [&tag, "$", value, &tag, "$"] {
            self.0.push_str(part);
        }
    }

    pub(crate) fn bytes(&mut self, value: Option<&[u8]>) {
        match value {
            Some(value) => self.joined(&[value]),
            None => {
                self.separate();
                self.0.push_str("NULL");
            }
        }
    }

    /// Several runs of bytes as one value.
    pub(crate) fn joined(&mut self, parts: &[&[u8]]) {
        self.separate();
        self.0.push_str("$c$\\x");
        for part in parts {
            let _ = write!(self.0, "{}", Hex(part));
        }
        self.0.push_str("$c$");
    }

    fn separate(&mut self) {
        if !self.0.is_empty() {
            self.0.push_str(", ");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_never_ends_before_its_end() {
        for (text, quoted) in [
            ("", "$c$$c$"),
            ("it's \\ $1", "$c$it's \\ $1$c$"),
            ("$", "$c$$$c$"),
            ("a$c", "$cc$a$c$cc$"),
            ("$c$); DROP", "$cc$$c$); DROP$cc$"),
            ("$c$ $cc$ $ccc", "$cccc$$c$ $cc$ $ccc$cccc$"),
        ] {
            let mut values = Values::default();
            values.text(Some(text));

            assert_eq!(values.0, quoted);
            let (tag, rest) = quoted.split_at(quoted[1..].find('$').unwrap_or_default() + 2);
            assert_eq!(rest.find(tag), Some(text.len()), "{quoted}");
        }
    }

    #[test]
    fn a_list_has_commas() {
        let mut values = Values::default();
        values.bytes(Some(b"\0\xff"));
        values.number(Some(-7));
        values.number(None::<i64>);
        values.text(None);
        values.bytes(None);
        values.joined(&[b"\x01", b"", b"\x02"]);

        let list = "$c$\\x00ff$c$, (-7), NULL, NULL, NULL, $c$\\x0102$c$";
        assert_eq!(values.0, list);
    }
}
