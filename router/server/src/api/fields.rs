//! A JSON object that is read field by field, so that every error names the field, what it got and what is allowed.
//!
//! Values stay raw text until somebody asks for them by a type. What the object's [`Shape`] does not describe is unknown, and what it
//! describes has been asked for: tests compare the two for every object that they parse. `null` means absent, as for OpenAI.

use std::{
    borrow::Cow,
    collections::{HashMap, HashSet},
    fmt,
    ops::RangeInclusive,
};

use pelton_engine::TokenId;
use serde::{
    Deserialize,
    de::{DeserializeOwned, Deserializer, Error as _, MapAccess, Visitor},
};
use serde_json::value::RawValue;

use self::meant::meant;
#[cfg(test)]
use super::shape::Way;
use super::{
    json::why_no_json,
    lists::{Items, shown_item},
    shape::Shape,
    unknown::{Given, Passed},
};
use crate::{
    error::{ApiError, shortened},
    json_size::{JsonSize, LEVELS_MAX, VALUES_MAX, too_deep, too_much},
};

mod meant;

/// A field that has token ids within it: whoever reads it measures its own fields.
pub(crate) const MEASURED_APART: &str = "sampling_params";

/// What a list of tokens is to hold.
pub(crate) const TOKEN_IDS: &str = "a list of token ids, integers from 0 to 4294967295";

/// Values by their names, in their order.
type Named<'a, T> = Vec<(Cow<'a, str>, T)>;

/// An object's fields.
pub(crate) struct Fields<'a> {
    /// Path of the object within the body, with a dot at its end; empty for the body itself.
    path: String,
    members: Vec<(Cow<'a, str>, &'a RawValue)>,
    /// Where unknown fields are noted; `None`: they are refused.
    passed: Option<&'a Passed>,
    /// What has been asked for, and how.
    #[cfg(test)]
    asked: Vec<(&'static str, Way)>,
}

impl<'a> Fields<'a> {
    /// A whole body.
    pub(crate) fn of_body(body: impl Into<Given<'a>>) -> Result<Self, ApiError> {
        let (fields, size) = Self::measured(body.into())?;
        if size.levels > LEVELS_MAX || size.counted() > VALUES_MAX {
            fields.check_sizes()?;
        }
        Ok(fields)
    }

    /// A whole text that has a body within it, which is measured when it is read itself.
    pub(crate) fn around_body(text: &'a [u8]) -> Result<Self, ApiError> {
        Self::measured(text.into()).map(|(fields, _)| fields)
    }

    fn measured(Given { bytes, passed }: Given<'a>) -> Result<(Self, JsonSize), ApiError> {
        let size = JsonSize::of(bytes);
        if size.outer_commas >= VALUES_MAX {
            let reason = format!("it has {} fields or items; allowed: at most {VALUES_MAX}", size.outer_commas + 1);
            return Err(ApiError::BadBody { reason });
        }
        let bad = |error: serde_json::Error| ApiError::BadBody { reason: why_no_json(&error) };
        let raw: &RawValue = serde_json::from_slice(bytes).map_err(bad)?;
        let members: Members<'a> = serde_json::from_str(raw.get()).map_err(|error| {
            let reason = if raw.get().starts_with('{') { why_no_json(&error) } else { format!("it is {}", shown(raw)) };
            ApiError::BadBody { reason }
        })?;
        Ok((Self::new(String::new(), members, passed)?, size))
    }

    /// Names the field that is too deep, or the largest if all are too much together.
    pub(crate) fn check_sizes(&self) -> Result<(), ApiError> {
        let mut sizes: Vec<_> =
            self.members.iter().map(|(name, raw)| (name, JsonSize::of(raw.get().as_bytes()))).collect();
        sizes.retain(|(name, size)| *name != MEASURED_APART || size.outer_commas >= VALUES_MAX);
        if let Some((name, size)) = sizes.iter().find(|(_, size)| size.levels >= LEVELS_MAX) {
            return Err(too_deep(&self.at(&shortened(name)), *size));
        }
        let all: usize = sizes.iter().map(|(_, size)| size.counted()).sum();
        match sizes.iter().max_by_key(|(_, size)| size.counted()) {
            Some((name, size)) if all > VALUES_MAX => Err(too_much(&self.at(&shortened(name)), *size)),
            _ => Ok(()),
        }
    }

    /// An object of our own; `path` as errors show it. An unknown field in it is refused.
    pub(crate) fn of_value(path: String, raw: &'a RawValue) -> Result<Self, ApiError> {
        Self::of_object(path, raw, None)
    }

    /// An object within this one, at a path of the whole body.
    pub(crate) fn within(&self, path: String, raw: &'a RawValue) -> Result<Self, ApiError> {
        Self::of_object(path, raw, self.passed)
    }

    fn of_object(path: String, raw: &'a RawValue, passed: Option<&'a Passed>) -> Result<Self, ApiError> {
        match serde_json::from_str::<Members<'a>>(raw.get()) {
            Ok(members) => Self::new(format!("{path}."), members, passed),
            Err(_) => Err(ApiError::invalid(path, shown(raw), "an object")),
        }
    }

    fn new(path: String, Members(members): Members<'a>, passed: Option<&'a Passed>) -> Result<Self, ApiError> {
        let mut seen = HashSet::with_capacity(members.len());
        if let Some((name, _)) = members.iter().find(|(name, _)| !seen.insert(name.as_ref())) {
            let param = format!("{path}{}", shortened(name));
            return Err(ApiError::Conflict { param, reason: "is given twice".to_owned() });
        }
        Ok(Self {
            path,
            members,
            passed,
            #[cfg(test)]
            asked: Vec::new(),
        })
    }

    /// Tells a field that must be there, is not, and is there by a name that nobody knows: by that name, not as missing.
    pub(crate) fn spelled(self, shape: &'static Shape) -> Result<Self, ApiError> {
        let is_there = |name: &str| self.members.iter().any(|(member, _)| member == name);
        let missing: Vec<&str> = shape.needed().filter(|name| !is_there(name)).collect();
        if missing.is_empty() || self.passed.is_some() {
            return Ok(self);
        }
        let names: Vec<&str> = shape.names().collect();
        let unknown = self.members.iter().filter(|(name, _)| !names.contains(&name.as_ref()));
        for name in unknown.map(|(name, _)| shortened(name)) {
            if let Some(meant) = meant(&name, &names).filter(|meant| missing.contains(meant)) {
                return Err(ApiError::Unknown { param: self.at(&name), nearest: Some(meant.to_owned()) });
            }
        }
        Ok(self)
    }

    /// A field's path, as errors show it.
    pub(crate) fn at(&self, name: &str) -> String {
        format!("{}{name}", self.path)
    }

    /// A field as raw text.
    pub(crate) fn raw(&mut self, name: &'static str) -> Option<&'a RawValue> {
        #[cfg(test)]
        self.asked.push((name, Way::Raw));
        self.members.iter().find(|(member, _)| member == name).map(|(_, raw)| *raw).filter(|raw| raw.get() != "null")
    }

    /// Notes in what way the latest field was asked for.
    #[cfg(test)]
    fn note(&mut self, name: &'static str, way: Way) {
        self.asked.push((name, way));
    }

    /// A field of a plain type. `allowed` says in words what that type means.
    pub(crate) fn read<T: Deserialize<'a>>(
        &mut self,
        name: &'static str,
        allowed: &'static str,
    ) -> Result<Option<T>, ApiError> {
        let Some(raw) = self.raw(name) else { return Ok(None) };
        match serde_json::from_str(raw.get()) {
            Ok(value) => Ok(Some(value)),
            Err(_) => Err(self.wrong(name, raw, allowed)),
        }
    }

    /// The same for a field that must be there.
    pub(crate) fn need<T: Deserialize<'a>>(
        &mut self,
        name: &'static str,
        allowed: &'static str,
    ) -> Result<T, ApiError> {
        self.read(name, allowed)?.ok_or_else(|| ApiError::Missing { param: self.at(name), allowed })
    }

    pub(crate) fn flag(&mut self, name: &'static str) -> Result<Option<bool>, ApiError> {
        #[cfg(test)]
        self.note(name, Way::Flag);
        self.read(name, "true or false")
    }

    pub(crate) fn text(&mut self, name: &'static str) -> Result<Option<String>, ApiError> {
        #[cfg(test)]
        self.note(name, Way::Text);
        self.read(name, "a text")
    }

    /// A field that is one of a few words.
    pub(crate) fn one_of(
        &mut self,
        name: &'static str,
        words: &'static [&'static str],
        allowed: &'static str,
    ) -> Result<Option<&'static str>, ApiError> {
        #[cfg(test)]
        self.note(name, Way::Word(words));
        let Some(raw) = self.raw(name) else { return Ok(None) };
        let got = serde_json::from_str::<String>(raw.get()).ok();
        let word = words.iter().copied().find(|word| got.as_deref() == Some(*word));
        word.map(Some).ok_or_else(|| self.wrong(name, raw, allowed))
    }

    /// A whole number, however it is written: for JSON's schemas `5.0` is one.
    pub(crate) fn integer<T: TryFrom<i64> + Deserialize<'a>>(
        &mut self,
        name: &'static str,
        allowed: &'static str,
    ) -> Result<Option<T>, ApiError> {
        #[cfg(test)]
        self.note(name, Way::Integer);
        let Some(raw) = self.raw(name) else { return Ok(None) };
        let whole = serde_json::from_str(raw.get()).ok().or_else(|| T::try_from(whole(raw.get())?).ok());
        whole.map(Some).ok_or_else(|| self.wrong(name, raw, allowed))
    }

    /// A number of things. `allowed` says how many there may be, as whoever checks it says.
    pub(crate) fn count(&mut self, name: &'static str, allowed: &'static str) -> Result<Option<u32>, ApiError> {
        self.integer(name, allowed)
    }

    /// The same for a number that must be there.
    pub(crate) fn need_count(&mut self, name: &'static str, allowed: &'static str) -> Result<u32, ApiError> {
        self.integer(name, allowed)?.ok_or_else(|| ApiError::Missing { param: self.at(name), allowed })
    }

    /// A list of token ids. It may be long: items are looked at one by one only to name a wrong one.
    pub(crate) fn token_ids(&mut self, name: &'static str) -> Result<Option<Vec<TokenId>>, ApiError> {
        #[cfg(test)]
        self.note(name, Way::TokenIds);
        let Some(raw) = self.raw(name) else { return Ok(None) };
        ids(raw).map(Some).ok_or_else(|| {
            let got = shown_item::<TokenId>(raw).unwrap_or_else(|| shown(raw));
            ApiError::invalid(self.at(name), got, TOKEN_IDS)
        })
    }

    /// A number of 32 bits. `range` is asked of it later: it is told here of what is none, or has no 32 bits and so would be shown as
    /// something else.
    pub(crate) fn number(&mut self, name: &'static str, range: &RangeInclusive<f32>) -> Result<Option<f32>, ApiError> {
        #[cfg(test)]
        self.note(name, Way::Number);
        let Some(raw) = self.raw(name) else { return Ok(None) };
        match number_of(raw).filter(|_| is_within(raw, range)) {
            Some(number) => Ok(Some(number)),
            None => Err(self.wrong(name, raw, told_range(range))),
        }
    }

    /// An object of numbers, each in words that an error has for its name.
    pub(crate) fn numbers(
        &mut self,
        name: &'static str,
        allowed: &'static str,
    ) -> Result<Option<Named<'a, f32>>, ApiError> {
        let Some(raw) = self.raw(name) else { return Ok(None) };
        let Ok(Members(members)) = serde_json::from_str::<Members<'a>>(raw.get()) else {
            return Err(self.wrong(name, raw, allowed));
        };
        let number = |(key, value): (Cow<'a, str>, &RawValue)| match number_of(value) {
            Some(number) => Ok((key, number)),
            None => Err(ApiError::invalid(self.at(name), member_shown(&key, value), allowed)),
        };
        members.into_iter().map(number).collect::<Result<_, _>>().map(Some)
    }

    /// An object of texts.
    pub(crate) fn named_texts(&mut self, name: &'static str) -> Result<Option<HashMap<String, String>>, ApiError> {
        let allowed = "an object from texts to texts";
        let Some(raw) = self.raw(name) else { return Ok(None) };
        if let Ok(texts) = serde_json::from_str(raw.get()) {
            return Ok(Some(texts));
        }
        let members = serde_json::from_str::<Members<'a>>(raw.get()).ok().map(|Members(members)| members);
        let is_wrong = |(_, value): &&(_, &RawValue)| serde_json::from_str::<String>(value.get()).is_err();
        let wrong = members.as_ref().and_then(|members| members.iter().find(is_wrong));
        let got = wrong.map_or_else(|| shown(raw), |(key, value)| member_shown(key, value));
        Err(ApiError::invalid(self.at(name), got, allowed))
    }

    /// A list of texts.
    pub(crate) fn texts(&mut self, name: &'static str, allowed: &'static str) -> Result<Option<Vec<String>>, ApiError> {
        let Some(raw) = self.raw(name) else { return Ok(None) };
        serde_json::from_str(raw.get()).map(Some).map_err(|_| self.wrong_item::<String>(name, raw, allowed))
    }

    /// The error for a list that should have had items of a type: it names the first that has not.
    pub(crate) fn wrong_item<T: DeserializeOwned>(
        &self,
        name: &str,
        raw: &RawValue,
        allowed: &'static str,
    ) -> ApiError {
        ApiError::invalid(self.at(name), shown_item::<T>(raw).unwrap_or_else(|| shown(raw)), allowed)
    }

    /// A field that is an object, to be read field by field.
    pub(crate) fn object(&mut self, name: &'static str) -> Result<Option<Fields<'a>>, ApiError> {
        #[cfg(test)]
        self.note(name, Way::Object);
        self.raw(name).map(|raw| self.within(self.at(name), raw)).transpose()
    }

    /// A field that is a list of objects, to be read field by field.
    pub(crate) fn objects(&mut self, name: &'static str) -> Result<Option<Vec<Fields<'a>>>, ApiError> {
        #[cfg(test)]
        self.note(name, Way::Objects);
        let Some(Items(items)) = self.read(name, "a list of objects")? else { return Ok(None) };
        let path = self.at(name);
        let fields = items.into_iter().enumerate().map(|(index, raw)| self.within(format!("{path}[{index}]"), raw));
        fields.collect::<Result<_, _>>().map(Some)
    }

    /// The error for a field that is something else than allowed.
    pub(crate) fn wrong(&self, name: &str, raw: &RawValue, allowed: impl Into<Cow<'static, str>>) -> ApiError {
        ApiError::invalid(self.at(name), shown(raw), allowed)
    }

    /// Whether unknown fields are not refused.
    pub(crate) fn passes_unknown(&self) -> bool {
        self.passed.is_some()
    }

    /// Every field must be one of the shape's, which have all been asked for by now; or is noted, where unknown ones pass.
    pub(crate) fn finish(self, shape: &'static Shape) -> Result<(), ApiError> {
        #[cfg(test)]
        shape.check(&self.asked);
        let mut unknown = self.members.iter().filter(|(name, _)| !shape.names().any(|known| known == name));
        if let Some(passed) = self.passed {
            unknown.for_each(|(name, _)| passed.note(&self.at(&shortened(name))));
            return Ok(());
        }
        let Some((name, _)) = unknown.next() else { return Ok(()) };
        // Shortened before it is compared: a name may be as long as a body.
        let name = shortened(name);
        let nearest = meant(&name, &shape.names().collect::<Vec<_>>()).map(str::to_owned);
        Err(ApiError::Unknown { param: self.at(&name), nearest })
    }

    /// For tests of a part of an object: every field must have been asked for.
    #[cfg(test)]
    pub(crate) fn finish_part(self) -> Result<(), ApiError> {
        match self.members.iter().find(|(name, _)| !self.asked.iter().any(|(asked, _)| asked == name)) {
            Some((name, _)) => Err(ApiError::Unknown { param: self.at(name), nearest: None }),
            None => Ok(()),
        }
    }
}

/// The members of an object in their order, values raw.
struct Members<'a>(Vec<(Cow<'a, str>, &'a RawValue)>);

impl<'de: 'a, 'a> Deserialize<'de> for Members<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Collect;
        impl<'de> Visitor<'de> for Collect {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some(Name(name)) = map.next_key::<Name<'de>>()? {
                    members.push((name, map.next_value::<&'de RawValue>()?));
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(Collect)
    }
}

/// A member's name, borrowed unless it has escapes. (`Cow` alone always copies.)
#[derive(Deserialize)]
struct Name<'a>(#[serde(borrow)] Cow<'a, str>);

/// A list of token ids. Nearly all are written without a point: the others are read a second time.
pub(crate) fn ids(raw: &RawValue) -> Option<Vec<TokenId>> {
    if let Ok(ids) = serde_json::from_str(raw.get()) {
        return Some(ids);
    }
    let ids: Vec<WholeId> = serde_json::from_str(raw.get()).ok()?;
    Some(ids.into_iter().map(|WholeId(id)| id).collect())
}

/// A token id, however it is written.
struct WholeId(TokenId);

impl<'de> Deserialize<'de> for WholeId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let number = <&RawValue>::deserialize(deserializer)?;
        let id = whole(number.get()).and_then(|number| TokenId::try_from(number).ok());
        id.map(Self).ok_or_else(|| D::Error::custom("no token id"))
    }
}

/// Of a number with a point or an exponent, the integer that it is. Beyond 2^53 nobody knows which it was meant to be.
fn whole(number: &str) -> Option<i64> {
    let number: f64 = serde_json::from_str(number).ok()?;
    (number.fract() == 0.0 && number.abs() <= (1_u64 << 53) as f64).then_some(number as i64)
}

/// A number that 32 bits hold.
fn number_of(raw: &RawValue) -> Option<f32> {
    let number: f64 = serde_json::from_str(raw.get()).ok()?;
    // What is not quite nothing stays so.
    let is_lost = number != 0.0 && number as f32 == 0.0;
    let number = if is_lost { f32::MIN_POSITIVE.copysign(number as f32) } else { number as f32 };
    Some(number).filter(|number| number.is_finite())
}

/// Whether a number is in a range as it was sent, before it is rounded.
fn is_within(raw: &RawValue, range: &RangeInclusive<f32>) -> bool {
    let exact = |bound: &f32| bound.to_string().parse::<f64>().unwrap_or(f64::from(*bound));
    let Ok(number) = serde_json::from_str::<f64>(raw.get()) else { return false };
    let is_above = match *range.start() {
        f32::MIN_POSITIVE => number > 0.0,
        _ => number >= exact(range.start()),
    };
    is_above && number <= exact(range.end())
}

/// As errors of the shared checks tell it.
fn told_range(range: &RangeInclusive<f32>) -> String {
    match (*range.start(), *range.end()) {
        (f32::MIN_POSITIVE, end) => format!("a number above 0, at most {end}"),
        (start, end) => format!("a number from {start} to {end}"),
    }
}

fn member_shown(name: &str, value: &RawValue) -> String {
    format!("an object whose {} is {}", quoted(name), shown(value))
}

/// A value as an error repeats it: lists and objects in a word, the rest shortened.
pub(crate) fn shown(raw: &RawValue) -> String {
    let text = raw.get();
    match text.as_bytes().first() {
        Some(b'[') if text.trim_matches(['[', ']']).trim().is_empty() => "an empty list".to_owned(),
        Some(b'[') => "a list".to_owned(),
        Some(b'{') => "an object".to_owned(),
        Some(b'"') => format!("the text {}", shortened(text)),
        _ => shortened(text),
    }
}

/// A text within a sentence: in quotes, shortened.
pub(crate) fn quoted(text: &str) -> String {
    format!("{:?}", shortened(text))
}

#[cfg(test)]
mod tests;
