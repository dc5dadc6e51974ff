//! Which text a setting has, and who said it: flags before variables before the file before defaults.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;

use super::error::ConfigError;
use super::setting::{Default, Scope, Setting};
use super::value::Value;
use super::{file, flags};
use crate::nearest::nearest;

/// What a wheel knows of its own installation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wheel {
    /// The interpreter that runs this command.
    pub python: PathBuf,
    /// The demo model.
    pub demo_dir: PathBuf,
}

/// All that a configuration depends on besides the command line. Read once, at start.
#[derive(Debug, Clone, std::default::Default)]
pub struct Surroundings {
    variables: BTreeMap<String, String>,
    /// Known when the command runs out of a wheel.
    pub wheel: Option<Wheel>,
}

impl Surroundings {
    /// Of the given variables: the process's own, or a test's.
    pub fn new(
        variables: impl IntoIterator<Item = (OsString, OsString)>,
        wheel: Option<Wheel>,
    ) -> Result<Self, ConfigError> {
        let mut texts = BTreeMap::new();
        for (name, value) in variables {
            let Ok(name) = name.into_string() else { continue }; // no name of ours
            match value.into_string() {
                Ok(value) => _ = texts.insert(name, value),
                Err(_) if name.starts_with("PELTON_") => {
                    return Err(ConfigError::NotText { what: format!("variable `{name}`") });
                }
                Err(_) => {}
            }
        }
        Ok(Self { variables: texts, wheel })
    }

    /// A variable, unless it is empty.
    pub fn variable(&self, name: &str) -> Option<&str> {
        self.variables.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }
}

/// Who said it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// A flag, or the word without a flag.
    Flag(String),
    /// A keyword argument of the Python class.
    Argument(String),
    /// A variable.
    Variable(String),
    /// A key of the file: path, line, key.
    File(PathBuf, usize, String),
    /// Nobody; why it is so.
    Default(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Flag(flag) => write!(f, "flag {flag}"),
            Origin::Argument(name) => write!(f, "argument {name}"),
            Origin::Variable(name) => write!(f, "variable {name}"),
            Origin::File(path, line, key) => write!(f, "{}:{line} {key}", path.display()),
            Origin::Default(why) => f.write_str(why),
        }
    }
}

/// The texts of one setting from one source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Given {
    /// The setting's field.
    pub field: &'static str,
    /// As they were written.
    pub texts: Vec<String>,
    /// Who said it.
    pub origin: Origin,
}

/// The chosen texts of all settings of a command. Made by `resolve`, so each one passes its check.
#[derive(Debug, Clone)]
pub struct Values {
    chosen: BTreeMap<&'static str, Given>,
}

impl Values {
    /// A setting as its type.
    pub fn take<T: Value>(&self, field: &'static str) -> T {
        T::read(&self.chosen[field].texts).expect("checked when it was resolved")
    }

    /// Texts and origin of a setting.
    pub fn given(&self, field: &str) -> &Given {
        &self.chosen[field]
    }
}

/// What a command line asks for.
#[derive(Debug)]
pub enum Asked {
    /// `--help`.
    Help,
    /// To run, with these values.
    Run(Values),
}

/// Chooses a text for each of `settings`. `arguments` come after the command's name; a word without a flag is `positional`'s.
pub fn resolve(
    arguments: &[OsString],
    positional: Option<&'static str>,
    settings: &[&'static Setting],
    around: &Surroundings,
) -> Result<Asked, ConfigError> {
    let line = match flags::parse(arguments, positional, settings)? {
        flags::Line::Help => return Ok(Asked::Help),
        flags::Line::Run(line) => line,
    };
    merge(line, settings, around).map(Asked::Run)
}

/// `said` before variables before the file before defaults.
pub fn merge(said: Vec<Given>, settings: &[&'static Setting], around: &Surroundings) -> Result<Values, ConfigError> {
    let variables = from_variables(settings, around)?;
    let config = said.iter().chain(&variables).find(|given| given.field == "config");
    let from_file = match config {
        Some(given) => file::read(given.texts[0].as_ref(), settings)?,
        None => Vec::new(),
    };
    let mut chosen: BTreeMap<&'static str, Given> =
        settings.iter().map(|setting| (setting.field, from_default(setting, around))).collect();
    // The most important source comes last and overwrites the others. Lists are replaced, not joined: who gives a
    // flag must not have to know what stands in a file.
    for given in from_file.into_iter().chain(variables).chain(said) {
        check(setting_of(settings, given.field), &given)?;
        chosen.insert(given.field, given);
    }
    for (field, given) in &chosen {
        check(setting_of(settings, field), given)?; // defaults that depend on the machine
    }
    Ok(Values { chosen })
}

fn setting_of(settings: &[&'static Setting], field: &str) -> &'static Setting {
    settings.iter().find(|setting| setting.field == field).expect("sources give only settings that exist")
}

fn check(setting: &Setting, given: &Given) -> Result<(), ConfigError> {
    let Err(allowed) = (setting.check)(&given.texts) else { return Ok(()) };
    let got = match (setting.secret, given.texts.as_slice()) {
        (true, _) => "something else".to_owned(),
        (false, []) => "missing".to_owned(),
        (false, texts) => texts.join(", "),
    };
    Err(ConfigError::OutOfRange { origin: Box::new(given.origin.clone()), name: setting.name(), got, allowed })
}

fn from_default(setting: &Setting, around: &Surroundings) -> Given {
    let (texts, why) = match &setting.default {
        Default::Fixed(texts) => (texts.iter().map(|text| (*text).to_owned()).collect(), "default".to_owned()),
        Default::Derived { function, .. } => {
            let derived = function(around);
            (derived.text.into_iter().collect(), derived.origin)
        }
    };
    Given { field: setting.field, texts, origin: Origin::Default(why) }
}

/// Whether Kubernetes has set it: in each pod stand the addresses of its namespace's services, and one may be called `pelton`, or
/// `pelton-router`. `PELTON_PORT` is then `tcp://10.0.0.1:8000`, unless the pod sets it itself.
fn is_service_link(name: &str, value: &str, variables: &BTreeMap<String, String>) -> bool {
    let is_service = |service: &str| variables.contains_key(&format!("{service}_SERVICE_HOST"));
    let is_address = ["tcp://", "udp://", "sctp://"].iter().any(|scheme| value.starts_with(scheme));
    let of_host = name.strip_suffix("_SERVICE_HOST").is_some();
    let of_service = name.split_once("_SERVICE_PORT").is_some_and(|(service, _)| is_service(service));
    let of_port = name.rmatch_indices("_PORT").any(|(at, _)| {
        let (service, rest) = (&name[..at], &name[at + "_PORT".len()..]);
        let names_a_port = rest.strip_prefix('_').and_then(|rest| rest.split_once('_')).is_some_and(|(port, rest)| {
            port.parse::<u16>().is_ok() && ["TCP", "UDP", "SCTP"].iter().any(|protocol| rest.starts_with(protocol))
        });
        is_service(service) && (names_a_port || (rest.is_empty() && is_address))
    });
    of_host || of_service || of_port
}

/// All `PELTON_` variables; one that belongs to no setting of the server is refused, whatever the command.
fn from_variables(settings: &[&'static Setting], around: &Surroundings) -> Result<Vec<Given>, ConfigError> {
    let known: BTreeMap<String, &'static Setting> = super::server_settings()
        .into_iter()
        .filter(|setting| setting.section.scope == Scope::Everywhere)
        .map(|setting| (setting.variable(), setting))
        .collect();
    let mut all = Vec::new();
    for (name, value) in
        around.variables.range("PELTON_".to_owned()..).take_while(|(name, _)| name.starts_with("PELTON_"))
    {
        if is_service_link(name, value, &around.variables) {
            continue;
        }
        let Some(setting) = known.get(name) else {
            let nearest = nearest(name, known.keys().map(String::as_str)).map(str::to_owned);
            return Err(ConfigError::UnknownVariable { got: name.clone(), nearest });
        };
        if value.is_empty() || !settings.iter().any(|used| used.field == setting.field) {
            continue; // not set, or not a matter of this command
        }
        all.push(Given { field: setting.field, texts: vec![value.clone()], origin: Origin::Variable(name.clone()) });
    }
    Ok(all)
}
