//! Lists of a request whose items are read one by one, and what is wrong with those that are not what they should be.

use std::{fmt, marker::PhantomData};

use pelton_engine::TokenId;
use serde::{
    Deserialize,
    de::{DeserializeOwned, Deserializer, Error, SeqAccess, Visitor},
};
use serde_json::value::RawValue;

use super::fields::shown;
use crate::json_size::VALUES_MAX;

/// A list's items, not looked at yet. A request that has more of them than [`VALUES_MAX`] has been refused, but if they are numbers: and
/// nothing that is read by this is.
pub(crate) struct Items<'a>(pub(crate) Vec<&'a RawValue>);

impl<'de: 'a, 'a> Deserialize<'de> for Items<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Collect;
        impl<'de> Visitor<'de> for Collect {
            type Value = Items<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
                let mut items = Vec::new();
                while let Some(item) = list.next_element()? {
                    if items.len() == VALUES_MAX {
                        return Err(A::Error::custom("too many numbers"));
                    }
                    items.push(item);
                }
                Ok(Items(items))
            }
        }
        deserializer.deserialize_seq(Collect)
    }
}

/// A list whose items are not all of a type: the first one that is not.
pub(crate) fn shown_item<T: DeserializeOwned>(raw: &RawValue) -> Option<String> {
    let FirstWrong(wrong, _) = serde_json::from_str::<FirstWrong<'_, T>>(raw.get()).ok()?;
    let (index, item) = wrong?;
    Some(format!("a list whose item {index} is {}", shown_item::<TokenId>(item).unwrap_or_else(|| shown(item))))
}

/// The first item of a list that is no `T`.
struct FirstWrong<'a, T>(Option<(usize, &'a RawValue)>, PhantomData<T>);

impl<'de: 'a, 'a, T: DeserializeOwned> Deserialize<'de> for FirstWrong<'a, T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Look<T>(PhantomData<T>);
        impl<'de, T: DeserializeOwned> Visitor<'de> for Look<T> {
            type Value = FirstWrong<'de, T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
                let (mut wrong, mut index) = (None, 0);
                while let Some(item) = list.next_element::<&'de RawValue>()? {
                    if wrong.is_none() && serde_json::from_str::<T>(item.get()).is_err() {
                        wrong = Some((index, item));
                    }
                    index += 1;
                }
                Ok(FirstWrong(wrong, PhantomData))
            }
        }
        deserializer.deserialize_seq(Look(PhantomData))
    }
}
