//! Names that an object of JSON has twice: of a schema nobody could say which is meant, and most readers take the last in silence.

use std::{collections::HashSet, fmt};

use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};

use crate::error::{ApiError, shortened};

/// Refuses a name that is there twice, by its place: the parameter, and a JSON pointer within it. What is no JSON its own reader tells.
pub(crate) fn check_names(param: &str, json: &str) -> Result<(), ApiError> {
    let mut walk = Walk { path: Vec::new(), is_twice: false };
    let walked = serde_json::Deserializer::from_str(json).deserialize_any(&mut walk);
    if walked.is_ok() || !walk.is_twice {
        return Ok(());
    }
    let steps = walk.path.iter().map(|step| shortened(&step.replace('~', "~0").replace('/', "~1")));
    let param = steps.fold(param.to_owned(), |place, step| format!("{place}/{step}"));
    Err(ApiError::Conflict { param, reason: "is given twice".to_owned() })
}

/// Goes through a value. Where it stops, `path` says.
struct Walk {
    path: Vec<String>,
    is_twice: bool,
}

impl<'de> DeserializeSeed<'de> for &mut Walk {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for &mut Walk {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let mut seen = HashSet::new();
        while let Some(name) = map.next_key::<String>()? {
            let is_new = seen.insert(name.clone());
            self.path.push(name);
            if !is_new {
                self.is_twice = true;
                return Err(A::Error::custom("a name is there twice"));
            }
            map.next_value_seed(&mut *self)?;
            self.path.pop();
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        for at in 0_usize.. {
            self.path.push(at.to_string());
            let item = list.next_element_seed(&mut *self)?;
            self.path.pop();
            if item.is_none() {
                break;
            }
        }
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_there_twice_is_told_with_its_place() {
        for (json, place) in [
            (r#"{"a": 1, "a": 2}"#, "p/a"),
            (r#"{"a": 1, "\u0061": 2}"#, "p/a"),
            (r#"{"a": {"b": [1, null, {"c/d": true, "c/d": "x"}]}}"#, "p/a/b/2/c~1d"),
            (r#"[[], [{"": 1.5, "": -1}]]"#, "p/1/0/"),
        ] {
            let error = check_names("p", json).expect_err(json).to_string();
            assert_eq!(error, format!("`{place}` is given twice"));
        }
        for json in [r#"{"a": {"a": 1}, "b": [{"a": 1}, {"a": 2}]}"#, "5", "{", r#"{"a": 1, "#, "\"a\""] {
            assert_eq!(check_names("p", json), Ok(()), "{json}");
        }
    }
}
