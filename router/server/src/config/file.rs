//! The configuration file: TOML, one table per section, one key per setting, each value with its line.

use std::path::Path;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::error::ConfigError;
use super::resolve::{Given, Origin};
use super::setting::{Scope, Setting};
use crate::nearest::nearest;

/// All values of the file at `path` that `settings` has. A name that no setting of the server has is refused.
pub(super) fn read(path: &Path, settings: &[&'static Setting]) -> Result<Vec<Given>, ConfigError> {
    let failed = |reason: String| ConfigError::File { path: path.to_owned(), reason };
    let text = std::fs::read_to_string(path).map_err(|error| failed(format!("cannot be read: {error}")))?;
    let document = DeTable::parse(&text).map_err(|error| failed(error.to_string()))?;
    let known: Vec<_> = super::server_settings()
        .into_iter()
        .filter(|setting| setting.section.scope == Scope::Everywhere && setting.field != "config")
        .collect();
    let reader = Reader { path, text: &text, known };
    let mut all = Vec::new();
    for (section, table) in document.get_ref() {
        let keys = reader.section(section, table)?;
        for (key, value) in keys {
            let given = reader.key(section.get_ref(), key, value)?;
            if settings.iter().any(|setting| setting.field == given.field) {
                all.push(given);
            }
        }
    }
    Ok(all)
}

type Key<'a> = Spanned<std::borrow::Cow<'a, str>>;

struct Reader<'a> {
    path: &'a Path,
    text: &'a str,
    known: Vec<&'static Setting>,
}

impl Reader<'_> {
    fn line(&self, byte: usize) -> usize {
        self.text[..byte].bytes().filter(|byte| *byte == b'\n').count() + 1
    }

    fn unknown(&self, what: &'static str, key: &Key<'_>, nearest: Option<String>) -> ConfigError {
        let at = format!("{}:{}", self.path.display(), self.line(key.span().start));
        ConfigError::UnknownKey { at, what, got: key.get_ref().to_string(), nearest }
    }

    fn section<'t, 'i>(&self, name: &Key<'_>, value: &'t Spanned<DeValue<'i>>) -> Result<&'t DeTable<'i>, ConfigError> {
        let is_known = self.known.iter().any(|setting| setting.section.name == name.get_ref());
        match value.get_ref() {
            DeValue::Table(table) if is_known => Ok(table),
            DeValue::Table(_) => {
                let tables = self.known.iter().map(|setting| setting.section.name);
                Err(self.unknown("table", name, nearest(name.get_ref(), tables).map(|table| format!("[{table}]"))))
            }
            _ => Err(self.unknown("key", name, self.place_of(name.get_ref()))),
        }
    }

    fn key(&self, section: &str, key: &Key<'_>, value: &Spanned<DeValue<'_>>) -> Result<Given, ConfigError> {
        let name = key.get_ref().as_ref();
        let setting = self.known.iter().find(|setting| setting.section.name == section && setting.name() == name);
        let Some(setting) = setting else {
            let here: Vec<String> = self
                .known
                .iter()
                .filter(|setting| setting.section.name == section)
                .map(|setting| setting.name())
                .collect();
            let near = nearest(name, here.iter().map(String::as_str)).map(str::to_owned);
            return Err(self.unknown("key", key, near.or_else(|| self.place_of(name))));
        };
        let line = self.line(key.span().start);
        let origin = Origin::File(self.path.to_owned(), line, format!("{section}.{name}"));
        let texts = match value.get_ref() {
            DeValue::Array(items) => items.iter().map(|item| scalar(item.get_ref())).collect::<Option<_>>(),
            one => scalar(one).map(|text| vec![text]),
        };
        let wrong = || ConfigError::OutOfRange {
            origin: Box::new(origin.clone()),
            name: name.to_owned(),
            got: format!("a {}", value.get_ref().type_str()),
            allowed: (setting.form)(),
        };
        Ok(Given { field: setting.field, texts: texts.ok_or_else(wrong)?, origin })
    }

    /// A key that stands in the wrong table, or nearly so: `port in [server]`.
    fn place_of(&self, name: &str) -> Option<String> {
        let names: Vec<String> = self.known.iter().map(|setting| setting.name()).collect();
        let near = nearest(name, names.iter().map(String::as_str))?;
        let setting = self.known.iter().find(|setting| setting.name() == near)?;
        Some(format!("{near}` in `[{}]", setting.section.name))
    }
}

fn scalar(value: &DeValue<'_>) -> Option<String> {
    match value {
        DeValue::String(text) => Some(text.to_string()),
        DeValue::Integer(number) if number.radix() == 10 => Some(number.as_str().to_owned()),
        DeValue::Float(number) => Some(number.as_str().to_owned()),
        DeValue::Boolean(truth) => Some(truth.to_string()),
        _ => None,
    }
}
