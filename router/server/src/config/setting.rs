//! What a setting is, and the macro by which it is declared once.
//!
//! From one declaration come the field with its type, the flag, the variable, the key in the file, the help text and the
//! docs: they cannot disagree, because none of them is written down a second time.

use super::resolve::{Surroundings, Values};
use super::value::Arity;

/// Settings that belong together: a table in the file, a heading in help.
#[derive(Debug, PartialEq, Eq)]
pub struct Section {
    /// The table's name in the file.
    pub name: &'static str,
    /// The heading.
    pub title: &'static str,
    /// Where its settings may be given.
    pub scope: Scope,
}

/// Where the settings of a section may be given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// As flags, variables and keys.
    Everywhere,
    /// As flags only: options of one command.
    CommandLine,
}

/// One setting, without its type.
#[derive(Debug)]
pub struct Setting {
    /// Where it belongs.
    pub section: &'static Section,
    /// `max_model_len`; all other names are made from it.
    pub field: &'static str,
    /// One letter for those who type it often.
    pub short: Option<char>,
    /// What it does, one or two sentences; blanks at the line ends are the doc comment's.
    pub help: &'static [&'static str],
    /// Stands for the value in help.
    pub form: fn() -> String,
    /// How many texts it takes.
    pub arity: Arity,
    /// Whether its value is masked.
    pub secret: bool,
    /// What it is when nobody says anything.
    pub default: Default,
    /// Reads texts as its type and shows the result; `Err`: what is allowed.
    pub check: fn(&[String]) -> Result<String, String>,
}

/// What a setting is when nobody says anything.
#[derive(Debug)]
pub enum Default {
    /// Always these texts.
    Fixed(&'static [&'static str]),
    /// It depends on the machine or the installation.
    Derived {
        /// What it usually is, for the docs, which are the same on every machine.
        words: &'static str,
        /// What it is here.
        function: fn(&Surroundings) -> Derived,
    },
}

/// A default with its reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Derived {
    /// None: not set.
    pub text: Option<String>,
    /// "variable HF_HOME", "the wheel's interpreter".
    pub origin: String,
}

impl Setting {
    /// In files and messages: `max-model-len`.
    pub fn name(&self) -> String {
        self.field.replace('_', "-")
    }

    /// On the command line: `--max-model-len`.
    pub fn flag(&self) -> String {
        format!("--{}", self.name())
    }

    /// In the environment: `PELTON_MAX_MODEL_LEN`.
    pub fn variable(&self) -> String {
        format!("PELTON_{}", self.field.to_uppercase())
    }

    /// The doc comment as one paragraph.
    pub fn help(&self) -> String {
        self.help.iter().map(|line| line.trim()).collect::<Vec<_>>().join(" ")
    }
}

/// A struct whose fields are settings.
pub trait Settings: Sized {
    /// Where they belong.
    const SECTION: &'static Section;
    /// Its settings, in the order of their declaration.
    const ALL: &'static [Setting];
    /// Every value was checked when it was resolved.
    fn take(values: &Values) -> Self;
}

/// Declares a struct of settings. A field is `name: Type = "default"`, `name: Type` (no default: not set or empty),
/// or `name: Type, by function as "words"` (the default depends on the machine).
macro_rules! settings {
    (
        #[doc = $title:literal]
        $vis:vis section $struct:ident ($section:literal, $scope:ident)
        { $($(#[doc = $help:literal])+ $field:ident : $type:ty $(= $default:literal)? $(, by $derived:path as $words:literal)? $(, short $short:literal)?;)+ }
    ) => {
        #[doc = $title]
        #[derive(Debug, Clone)]
        $vis struct $struct {
            $($(#[doc = $help])+ $vis $field: $type,)+
        }

        impl $crate::config::Settings for $struct {
            const SECTION: &'static $crate::config::Section = &$crate::config::Section {
                name: $section,
                title: $title,
                scope: $crate::config::Scope::$scope,
            };
            const ALL: &'static [$crate::config::Setting] = &[$(
                $crate::config::Setting {
                    section: <Self as $crate::config::Settings>::SECTION,
                    field: stringify!($field),
                    short: settings!(@short $($short)?),
                    help: &[$($help),+],
                    form: <$type as $crate::config::Value>::form,
                    arity: <$type as $crate::config::Value>::ARITY,
                    secret: <$type as $crate::config::Value>::SECRET,
                    default: settings!(@default [$($default)?] [$($derived, $words)?]),
                    check: |texts| {
                        <$type as $crate::config::Value>::read(texts)
                            .map(|value| $crate::config::Value::show(&value))
                    },
                },
            )+];

            fn take(values: &$crate::config::Values) -> Self {
                Self { $($field: values.take(stringify!($field)),)+ }
            }
        }
    };
    (@short) => { None };
    (@short $short:literal) => { Some($short) };
    (@default [] []) => { $crate::config::Default::Fixed(&[]) };
    (@default [$text:literal] []) => { $crate::config::Default::Fixed(&[$text]) };
    (@default [] [$function:path, $words:literal]) => { $crate::config::Default::Derived { words: $words, function: $function } };
}

pub(crate) use settings;
