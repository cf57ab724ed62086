//! A section of the file while it is checked: every refusal names its key and its place.

use std::fmt::Display;
use std::path::PathBuf;

use super::settings::Judge;
use super::value::Pointed;

pub(super) struct At<'j, 'a> {
    /// In the document: `destination.billing`.
    path: String,
    /// For people: `[destination.billing]`.
    shown: String,
    pub(super) judge: &'j mut Judge<'a>,
}

impl<'j, 'a> At<'j, 'a> {
    pub(super) fn new(path: String, shown: String, judge: &'j mut Judge<'a>) -> Self {
        Self { path, shown, judge }
    }

    pub(super) fn destination(name: &str, judge: &'j mut Judge<'a>) -> Self {
        let path = format!("destination.{name}");
        let shown = format!("[{path}]");
        Self::new(path, shown, judge)
    }

    /// The section, for people.
    pub(super) fn shown(&self) -> &str {
        &self.shown
    }

    /// Something is wrong with a key.
    pub(super) fn wrong(&mut self, key: &str, error: &dyn Display) {
        let path = format!("{}.{key}", self.path);
        let text = format!("`{key}` in {}: {error}", self.shown);
        self.judge.refuse(&path, text);
    }

    /// A key is missing.
    pub(super) fn missing(&mut self, key: &str) {
        let path = format!("{}.{key}", self.path);
        let text = format!("{} needs a `{key}`", self.shown);
        self.judge.refuse(&path, text);
    }

    /// A driver was left out of the build.
    #[allow(dead_code, reason = "used when a driver was left out")]
    pub(super) fn left_out(&mut self, what: &str, feature: &str) {
        let text = format!(
            "this program was built without {what}: leave it out, or build it with the feature \
             `{feature}`, for example with `cargo install --path crates/counterfoil-cli --features \
             {feature}`"
        );
        self.wrong("type", &text);
    }

    /// What a value stands for or points at.
    pub(super) fn text(&mut self, key: &str, value: &Pointed) -> Option<String> {
        let path = format!("{}.{key}", self.path);
        let shown = format!("`{key}` in {}", self.shown);
        self.judge.resolve(&path, &shown, value)
    }

    /// The same of a key that must be there.
    pub(super) fn needed(&mut self, key: &str, value: Option<&Pointed>) -> Option<String> {
        match value {
            Some(value) => self.text(key, value),
            None => {
                self.missing(key);
                None
            }
        }
    }

    /// The same of a key that may be absent. Nothing: something is wrong with it.
    pub(super) fn optional(
        &mut self,
        key: &str,
        value: Option<&Pointed>,
    ) -> Option<Option<String>> {
        match value {
            Some(value) => self.text(key, value).map(Some),
            None => Some(None),
        }
    }

    /// Looks whether all of these can be read, so that what is wrong with one does not hide the others.
    pub(super) fn look(&mut self, values: &[(&str, Option<&Pointed>)]) -> Option<()> {
        let mut fine = Some(());
        for (key, value) in values {
            if value.is_some_and(|value| self.text(key, value).is_none()) {
                fine = None;
            }
        }
        fine
    }

    /// A file, beside the configuration file.
    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.judge.beside.join(name)
    }
}
