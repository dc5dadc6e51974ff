//! What a setting's text may be, and the type that it becomes. One parser for flags, variables and files.
//!
//! A type says what it allows; whoever asked says where the text came from. No type here knows a setting by name.

use std::path::PathBuf;

/// How many texts a setting takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arity {
    /// Exactly one; a second one is refused.
    One,
    /// True or false; on the command line the bare flag means true, and `--no-NAME` false.
    Switch,
    /// The flag may be given again: `--api-key A --api-key B`.
    Repeated,
    /// The flag takes all words up to the next flag: `-c 1 8 32`.
    Row,
}

/// The type of a setting. `Err` of `read` says in words what is allowed.
pub trait Value: Sized {
    /// Stands for the value in help: `SECONDS`, `auto|bfloat16|float32`.
    fn form() -> String;
    /// How many texts it takes.
    const ARITY: Arity = Arity::One;
    /// Whether it may be shown to anybody.
    const SECRET: bool = false;
    /// From all texts that were given.
    fn read(texts: &[String]) -> Result<Self, String>;
    /// For `config explain`; secrets show nothing.
    fn show(&self) -> String;
}

/// The type of one word; lists, options and `auto` are made of it.
pub trait Word: Sized {
    /// See [`Value::form`].
    fn form() -> String;
    /// See [`Value::SECRET`].
    const SECRET: bool = false;
    /// Whether one text may hold several, with commas between.
    const COMMAS: bool = true;
    /// `Err` says in words what is allowed.
    fn parse(text: &str) -> Result<Self, String>;
    /// See [`Value::show`].
    fn show(&self) -> String;
}

impl<T: Word> Value for T {
    fn form() -> String {
        T::form()
    }
    const SECRET: bool = T::SECRET;
    fn read(texts: &[String]) -> Result<Self, String> {
        match texts {
            [text] => T::parse(text),
            _ => Err(format!("one {}", T::form())),
        }
    }
    fn show(&self) -> String {
        T::show(self)
    }
}

/// No text, or an empty one: not set.
impl<T: Word> Value for Option<T> {
    fn form() -> String {
        T::form()
    }
    const SECRET: bool = T::SECRET;
    fn read(texts: &[String]) -> Result<Self, String> {
        match texts {
            [] => Ok(None),
            [text] if text.is_empty() => Ok(None),
            [text] => T::parse(text).map(Some),
            _ => Err(format!("one {}", T::form())),
        }
    }
    fn show(&self) -> String {
        self.as_ref().map_or_else(|| "(not set)".into(), T::show)
    }
}

/// Any number; commas separate, except in secrets.
impl<T: Word> Value for Vec<T> {
    fn form() -> String {
        T::form()
    }
    const ARITY: Arity = Arity::Repeated;
    const SECRET: bool = T::SECRET;
    fn read(texts: &[String]) -> Result<Self, String> {
        parse_all(texts)
    }
    fn show(&self) -> String {
        if self.is_empty() { "(none)".into() } else { self.iter().map(T::show).collect::<Vec<_>>().join(", ") }
    }
}

/// At least one, given in a row: `-c 1 8 32`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row<T>(pub Vec<T>);

impl<T: Word> Value for Row<T> {
    fn form() -> String {
        format!("{} ...", T::form())
    }
    const ARITY: Arity = Arity::Row;
    fn read(texts: &[String]) -> Result<Self, String> {
        let words = parse_all(texts)?;
        if words.is_empty() { Err(format!("at least one {}", T::form())) } else { Ok(Self(words)) }
    }
    fn show(&self) -> String {
        self.0.iter().map(T::show).collect::<Vec<_>>().join(" ")
    }
}

fn parse_all<T: Word>(texts: &[String]) -> Result<Vec<T>, String> {
    let separator = if T::COMMAS { ',' } else { '\n' };
    texts
        .iter()
        .flat_map(|text| text.split(separator))
        .map(str::trim)
        // An empty secret is none that was meant, as of `--api-key "$KEY"` where nothing is set: left out, a door would stand open.
        .filter(|word| T::SECRET || !word.is_empty())
        .map(T::parse)
        .collect()
}

impl Value for bool {
    fn form() -> String {
        "true|false".into()
    }
    const ARITY: Arity = Arity::Switch;
    fn read(texts: &[String]) -> Result<Self, String> {
        match texts {
            [text] if text == "true" => Ok(true),
            [text] if text == "false" => Ok(false),
            _ => Err("true, false".into()),
        }
    }
    fn show(&self) -> String {
        self.to_string()
    }
}

/// `auto`: Pelton decides, and says at start what it decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Auto<T> {
    /// Left to Pelton.
    Auto,
    /// Said by the user.
    Of(T),
}

impl<T> Auto<T> {
    /// What the user said.
    pub fn said(self) -> Option<T> {
        match self {
            Auto::Auto => None,
            Auto::Of(value) => Some(value),
        }
    }
}

impl<T: Word> Word for Auto<T> {
    fn form() -> String {
        format!("auto|{}", T::form())
    }
    fn parse(text: &str) -> Result<Self, String> {
        if text == "auto" {
            return Ok(Auto::Auto);
        }
        T::parse(text).map(Auto::Of).map_err(|allowed| format!("auto, or {allowed}"))
    }
    fn show(&self) -> String {
        match self {
            Auto::Auto => "auto".into(),
            Auto::Of(value) => value.show(),
        }
    }
}

impl Word for String {
    fn form() -> String {
        "TEXT".into()
    }
    fn parse(text: &str) -> Result<Self, String> {
        if text.trim().is_empty() { Err("a text that is not empty".into()) } else { Ok(text.to_owned()) }
    }
    fn show(&self) -> String {
        self.clone()
    }
}

impl Word for PathBuf {
    fn form() -> String {
        "PATH".into()
    }
    fn parse(text: &str) -> Result<Self, String> {
        if text.is_empty() { Err("a path".into()) } else { Ok(text.into()) }
    }
    fn show(&self) -> String {
        self.display().to_string()
    }
}

impl Word for u16 {
    fn form() -> String {
        "PORT".into()
    }
    fn parse(text: &str) -> Result<Self, String> {
        text.parse().map_err(|_| "0 (any free port) to 65535".into())
    }
    fn show(&self) -> String {
        self.to_string()
    }
}
