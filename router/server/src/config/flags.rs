//! The command line: words into settings. Written by hand because the table of settings is the only declaration there is.
//!
//! `--name value`, `--name=value`, `--switch`, `--no-switch`, `-c value`; `--` ends the flags.

use std::ffi::OsString;

use super::error::ConfigError;
use super::resolve::{Given, Origin};
use super::setting::Setting;
use super::value::Arity;
use crate::nearest::nearest;

/// What a command line says.
#[derive(Debug)]
pub(super) enum Line {
    /// `--help` stands somewhere in it.
    Help,
    /// These settings, in order.
    Run(Vec<Given>),
}

/// Reads the words after the command's name. A word without a flag is `positional`'s; there may be one.
pub(super) fn parse(
    arguments: &[OsString],
    positional: Option<&'static str>,
    settings: &[&'static Setting],
) -> Result<Line, ConfigError> {
    let words = texts(arguments)?;
    if words.iter().take_while(|word| *word != "--").any(|word| word == "--help" || word == "-h") {
        return Ok(Line::Help);
    }
    let mut reader = Reader { settings, rest: words.into(), given: Vec::new() };
    let mut flags_ended = false;
    while let Some(word) = reader.rest.pop_front() {
        if flags_ended || !word.starts_with('-') || word == "-" {
            reader.positional(positional, word)?;
        } else if word == "--" {
            flags_ended = true;
        } else {
            reader.flag(&word)?;
        }
    }
    Ok(Line::Run(reader.given))
}

fn texts(arguments: &[OsString]) -> Result<Vec<String>, ConfigError> {
    let text = |argument: &OsString| {
        let lossy = || ConfigError::NotText { what: format!("`{}`", argument.to_string_lossy()) };
        argument.clone().into_string().map_err(|_| lossy())
    };
    arguments.iter().map(text).collect()
}

struct Reader<'a> {
    settings: &'a [&'static Setting],
    rest: std::collections::VecDeque<String>,
    given: Vec<Given>,
}

impl Reader<'_> {
    fn positional(&mut self, name: Option<&'static str>, word: String) -> Result<(), ConfigError> {
        let too_many = |got: &str, nearest| ConfigError::TooMany { got: got.to_owned(), nearest };
        let Some(field) = name else { return Err(too_many(&word, None)) };
        if self.given.iter().any(|given| given.field == field) {
            return Err(too_many(&word, None));
        }
        self.given.push(Given { field, texts: vec![word], origin: Origin::Flag(field.to_uppercase()) });
        Ok(())
    }

    fn flag(&mut self, word: &str) -> Result<(), ConfigError> {
        let (flag, inline) = match word.split_once('=') {
            Some((flag, value)) => (flag, Some(value.to_owned())),
            None => (word, None),
        };
        let (setting, negated) = self.find(flag)?;
        let texts = match (setting.arity, inline) {
            (_, Some(_)) if negated => return Err(self.unknown(word)),
            (_, Some(value)) => vec![value],
            (Arity::Switch, None) => vec![self.switch(negated)],
            (Arity::One | Arity::Repeated, None) => vec![self.value(setting)?],
            (Arity::Row, None) => self.row(setting)?,
        };
        self.keep(setting, texts)
    }

    /// The setting of a flag; true: it is `--no-NAME` of a switch.
    fn find(&self, flag: &str) -> Result<(&'static Setting, bool), ConfigError> {
        let is = |setting: &Setting, flag: &str| {
            flag.strip_prefix("--") == Some(&setting.name())
                || setting.short.is_some_and(|letter| flag.strip_prefix('-') == Some(letter.encode_utf8(&mut [0; 4])))
        };
        if let Some(setting) = self.settings.iter().find(|setting| is(setting, flag)) {
            return Ok((setting, false));
        }
        let positive = flag.strip_prefix("--no-").map(|name| format!("--{name}"));
        let switch = self
            .settings
            .iter()
            .find(|setting| setting.arity == Arity::Switch && positive.as_ref().is_some_and(|flag| is(setting, flag)));
        switch.map(|setting| (*setting, true)).ok_or_else(|| self.unknown(flag))
    }

    fn unknown(&self, flag: &str) -> ConfigError {
        let flags: Vec<String> = self.settings.iter().map(|setting| setting.flag()).collect();
        ConfigError::UnknownFlag {
            got: flag.to_owned(),
            nearest: nearest(flag, flags.iter().map(String::as_str)).map(str::to_owned),
        }
    }

    /// A bare switch, or one followed by the word true or false.
    fn switch(&mut self, negated: bool) -> String {
        match self.rest.front().map(String::as_str) {
            Some("true" | "false") if !negated => self.rest.pop_front().expect("looked at"),
            _ => (!negated).to_string(),
        }
    }

    /// The next word, whatever it is, unless it is a flag of ours: `--host --port` forgot a value.
    fn value(&mut self, setting: &Setting) -> Result<String, ConfigError> {
        let missing = || ConfigError::NoValue { flag: setting.flag(), form: (setting.form)() };
        match self.rest.front() {
            Some(word) if word.starts_with("--") => Err(missing()),
            _ => self.rest.pop_front().ok_or_else(missing),
        }
    }

    fn row(&mut self, setting: &Setting) -> Result<Vec<String>, ConfigError> {
        let mut texts = vec![self.value(setting)?];
        while self.rest.front().is_some_and(|word| !word.starts_with('-')) {
            texts.extend(self.rest.pop_front());
        }
        Ok(texts)
    }

    fn keep(&mut self, setting: &'static Setting, mut texts: Vec<String>) -> Result<(), ConfigError> {
        match self.given.iter_mut().find(|given| given.field == setting.field) {
            Some(given) if matches!(setting.arity, Arity::Repeated | Arity::Row) => given.texts.append(&mut texts),
            Some(_) => return Err(ConfigError::Twice { flag: setting.flag() }),
            None => self.given.push(Given { field: setting.field, texts, origin: Origin::Flag(setting.flag()) }),
        }
        Ok(())
    }
}
