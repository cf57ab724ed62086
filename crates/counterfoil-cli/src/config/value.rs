//! Values as people write them in the file: durations with a unit, texts that live elsewhere.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::de::{self, Deserialize, Deserializer, Visitor};

/// A duration with its unit: `"15s"`, `"200ms"`, `"1h 30m"`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span(pub(crate) Duration);

/// How long sent messages are kept: `false`, or a duration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct KeepSent(pub(crate) Option<Duration>);

/// A number of bytes: `65536`, `"64 MB"`, `"1 MiB"`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Size(pub(crate) usize);

/// A text that is written in the file, or that the file only points at: `env:NAME`, `file:PATH`.
#[derive(Clone, PartialEq, Eq, serde::Deserialize)]
#[serde(transparent)]
pub(crate) struct Pointed(String);

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(SpanVisitor).map(Span)
    }
}

impl<'de> Deserialize<'de> for KeepSent {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(KeepVisitor)
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(SizeVisitor)
    }
}

struct SizeVisitor;

impl Visitor<'_> for SizeVisitor {
    type Value = Size;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number of bytes, or a size such as \"64 MB\" or \"1 MiB\"")
    }

    fn visit_i64<E: de::Error>(self, bytes: i64) -> Result<Size, E> {
        usize::try_from(bytes)
            .map(Size)
            .map_err(|_| E::invalid_value(de::Unexpected::Signed(bytes), &self))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Size, E> {
        let digits = text.find(|c: char| !c.is_ascii_digit());
        let (number, unit) = text.split_at(digits.unwrap_or(text.len()));
        let unit: Option<usize> = match unit.trim() {
            "" | "B" => Some(1),
            "kB" | "KB" => Some(1_000),
            "MB" => Some(1_000_000),
            "GB" => Some(1_000_000_000),
            "KiB" => Some(1 << 10),
            "MiB" => Some(1 << 20),
            "GiB" => Some(1 << 30),
            _ => None,
        };
        let size = number.parse::<usize>().ok().zip(unit);
        size.and_then(|(number, unit)| number.checked_mul(unit))
            .map(Size)
            .ok_or_else(|| E::invalid_value(de::Unexpected::Str(text), &self))
    }
}

struct SpanVisitor;

impl Visitor<'_> for SpanVisitor {
    type Value = Duration;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a duration with its unit, such as \"15s\" or \"5m\"")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Duration, E> {
        humantime::parse_duration(text)
            .map_err(|_| E::invalid_value(de::Unexpected::Str(text), &self))
    }
}

struct KeepVisitor;

impl Visitor<'_> for KeepVisitor {
    type Value = KeepSent;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("false, or how long, such as \"7d\"")
    }

    fn visit_bool<E: de::Error>(self, keep: bool) -> Result<KeepSent, E> {
        match keep {
            false => Ok(KeepSent(None)),
            true => Err(E::invalid_value(de::Unexpected::Bool(true), &self)),
        }
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<KeepSent, E> {
        humantime::parse_duration(text)
            .map(|duration| KeepSent(Some(duration)))
            .map_err(|_| E::invalid_value(de::Unexpected::Str(text), &self))
    }
}

impl Pointed {
    /// The file that it points at.
    pub(crate) fn file(&self, beside: &Path) -> Option<PathBuf> {
        Some(beside.join(self.0.strip_prefix("file:")?))
    }

    /// The text itself. A relative `file:` is looked up beside the configuration file.
    pub(crate) fn resolve(&self, beside: &Path) -> Result<String, String> {
        if let Some(name) = self.0.strip_prefix("env:") {
            return std::env::var(name)
                .map_err(|_| format!("the environment variable {name} is not set"));
        }
        if let Some(path) = self.0.strip_prefix("file:") {
            let path = beside.join(path);
            return std::fs::read_to_string(&path)
                .map(|text| text.trim().to_owned())
                .map_err(|e| format!("{} cannot be read: {e}", path.display()));
        }
        Ok(self.0.clone())
    }
}

impl fmt::Debug for Pointed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.starts_with("env:") || self.0.starts_with("file:") {
            true => f.write_str(&self.0),
            false => f.write_str("(hidden)"),
        }
    }
}

/// A duration as people write it.
pub(crate) fn shown(duration: Duration) -> String {
    humantime::format_duration(duration).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units_or_are_bytes() {
        let size = |text: &str| SizeVisitor.visit_str::<de::value::Error>(text).map(|s| s.0);

        assert_eq!(size("64 MB").unwrap(), 64_000_000);
        assert_eq!(size("1MiB").unwrap(), 1 << 20);
        assert_eq!(size("7").unwrap(), 7);
        for wrong in [
            "",
            "MB",
            "1 mile",
            "-1",
            "99999999999999999999",
            "99999999999999999 GB",
        ] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_text_is_found_where_it_points() {
        let home = tempfile::tempdir().unwrap();
        std::fs::write(home.path().join("secret"), "hidden\n").unwrap();

        let resolve = |text: &str| Pointed(text.into()).resolve(home.path());

        assert_eq!(resolve("plain").unwrap(), "plain");
        assert_eq!(resolve("file:secret").unwrap(), "hidden");
        assert!(
            resolve("file:nothing")
                .unwrap_err()
                .contains("cannot be read")
        );
        assert!(
            resolve("env:COUNTERFOIL_TEST_NO_SUCH_VARIABLE")
                .unwrap_err()
                .contains("not set")
        );
    }

    #[test]
    fn a_secret_is_not_shown() {
        assert_eq!(format!("{:?}", Pointed("hunter2".into())), "(hidden)");
        assert_eq!(format!("{:?}", Pointed("env:NAME".into())), "env:NAME");
    }
}
