//! `/score`: how well texts suit each other, and what a rerank is made of as well.
//!
//! A classifier with one class reads both texts together; an embedding model makes a vector of each, and their cosine counts.

use std::sync::Arc;

use pelton_engine::{Gives, Pooling};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::value::RawValue;

use super::{
    INPUTS_MAX, List, PoolUsage,
    fields::{COMMON, Common, PEERS, TEXTS, read_texts},
    json,
    vectors::{activated, cosine},
};
use crate::{
    api::{
        fields::Fields,
        shape::{Kind, Shape, needed, optional},
        stream::Head,
        unknown::Given,
        unserved,
    },
    error::ApiError,
    generate::{PoolContent, PoolInput, PoolRequest, Pooled},
};

/// A shape with these two names for the sides, and without the other ones.
macro_rules! sides {
    ($name:literal, $first:literal, $second:literal, [$($other:literal),*]) => {
        Shape {
            name: $name,
            about: "Texts to be compared: the first with the first, or one with all.",
            fields: &[
                &[needed($first, TEXTS, "One text, or as many as there are on the other side."), needed($second, TEXTS, "The other side.")],
                &[$(optional($other, Kind::Absent, "Another name for a side.")),*],
                COMMON,
            ],
            unserved: &[PEERS, unserved::BOTH, unserved::MEDIA],
        }
    };
}

/// The body of a request for scores, by the names that its two sides go by.
pub(crate) const SCORES: [Shape; 4] = [
    sides!("ScoreDocumentsRequest", "queries", "documents", ["items", "text_1", "text_2", "data_1", "data_2"]),
    sides!("ScoreItemsRequest", "queries", "items", ["documents", "text_1", "text_2", "data_1", "data_2"]),
    sides!("ScoreTextsRequest", "text_1", "text_2", ["queries", "documents", "items", "data_1", "data_2"]),
    sides!("ScoreDataRequest", "data_1", "data_2", ["queries", "documents", "items", "text_1", "text_2"]),
];

/// One side of comparisons: a text for each, or one for all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Side {
    pub(super) param: String,
    pub(super) texts: Vec<String>,
    pub(super) is_list: bool,
}

impl Side {
    /// The path of one of its texts.
    fn item(&self, index: usize) -> String {
        if self.is_list { format!("{}[{index}]", self.param) } else { self.param.clone() }
    }
}

/// Texts to be compared: the first with the first, or one with all.
#[derive(Debug)]
pub(crate) struct ScoreRequest {
    common: Common,
    pairs: Pairs,
}

impl ScoreRequest {
    pub(crate) fn read<'a>(body: impl Into<Given<'a>>) -> Result<Self, ApiError> {
        let mut fields = Fields::of_body(body)?;
        let common = Common::read(&mut fields)?;
        let (first, second, shape) = read_sides(&mut fields)?;
        fields.finish(shape)?;
        let (one, many) = (first.texts.len(), second.texts.len());
        if one != 1 && one != many {
            let got = format!("a list of {one} texts, and `{}` one of {many}", second.param);
            return Err(ApiError::invalid(first.param, got, "one text, or as many"));
        }
        Ok(Self { common, pairs: Pairs { first, second, last_text_max: None } })
    }

    pub(crate) fn model(&self) -> Option<&str> {
        self.common.model.as_deref()
    }

    pub(crate) fn take_request_id(&mut self) -> Option<String> {
        self.common.request_id.take()
    }

    /// What the engine has to do for it.
    pub(crate) fn pool_request(&self, pooling: &Pooling, route: &str) -> Result<PoolRequest, ApiError> {
        self.pairs.pool_request(&self.common, pooling, route)
    }

    /// The response, as JSON.
    pub(crate) fn respond(&self, head: &Head, pooled: &[Pooled], pooling: &Pooling) -> Vec<u8> {
        let scores = self.pairs.scores(&self.common, pooled, pooling).into_iter().enumerate();
        let data = scores.map(|(index, score)| ScoreItem { index, object: "score", score }).collect();
        json(&List { head, data, usage: PoolUsage::of(pooled) })
    }
}

fn read_sides(fields: &mut Fields<'_>) -> Result<(Side, Side, &'static Shape), ApiError> {
    let mut found = None;
    for shape in &SCORES {
        let [first, second] = shape.fields[0] else { unreachable!("`sides!` makes two") };
        // Both are asked for, so that no name is unknown.
        let (one, other) = (fields.raw(first.name), fields.raw(second.name));
        if let (None, Some(one), Some(other)) = (&found, one, other) {
            found = Some(((first.name, one), (second.name, other), shape));
        }
    }
    let Some(((first, one), (second, other), shape)) = found else {
        // The other side of the one that is there.
        let halves = SCORES.iter().rev().filter_map(|shape| match shape.fields[0] {
            [one, other] if fields.raw(one.name).is_some() => Some(other.name),
            [one, other] if fields.raw(other.name).is_some() => Some(one.name),
            _ => None,
        });
        return Err(ApiError::Missing {
            param: halves.last().unwrap_or("text_1").to_owned(),
            allowed: "a text or a list of texts, together with its other side: `text_1` and `text_2`, or `queries` and `documents`",
        });
    };
    // The names of other sides say nothing beside these.
    if let Some(stray) = shape.fields[1].iter().find(|side| fields.raw(side.name).is_some()) {
        let reason = format!("cannot go together with `{first}` and `{second}`");
        return Err(ApiError::Conflict { param: fields.at(stray.name), reason });
    }
    let fields = &*fields;
    let side = |name: &str, raw: &RawValue| {
        let param = fields.at(name);
        let is_list = raw.get().starts_with('[');
        Ok::<_, ApiError>(Side { texts: read_texts(fields, &param, raw)?, param, is_list })
    };
    Ok((side(first, one)?, side(second, other)?, shape))
}

/// What is compared with what.
#[derive(Debug)]
pub(super) struct Pairs {
    pub(super) first: Side,
    pub(super) second: Side,
    pub(super) last_text_max: Option<u32>,
}

impl Pairs {
    /// Pairs for a classifier; for an embedding model each text once.
    pub(super) fn pool_request(
        &self,
        common: &Common,
        pooling: &Pooling,
        route: &str,
    ) -> Result<PoolRequest, ApiError> {
        let Self { first, second, last_text_max } = self;
        let single = |side: &Side, index: usize| PoolInput {
            param: side.item(index),
            content: PoolContent::Text(side.texts[index].clone()),
        };
        let inputs: Vec<PoolInput> = match &pooling.gives {
            Gives::Classes { labels, .. } if labels.len() == 1 => {
                let firsts: Vec<Arc<str>> = first.texts.iter().map(|text| text.as_str().into()).collect();
                let pair = |(index, text): (usize, &String)| PoolInput {
                    param: second.item(index),
                    content: PoolContent::Pair(Arc::clone(&firsts[index % firsts.len()]), text.clone()),
                };
                second.texts.iter().enumerate().map(pair).collect()
            }
            Gives::Classes { labels, .. } => {
                return Err(ApiError::WrongModelKind {
                    gives: "several classes",
                    refused: format!("{route} with a model of {} classes", labels.len()),
                    instead: "/classify, or a model with one class or with embeddings".to_owned(),
                });
            }
            Gives::Embedding { .. } => {
                let firsts = (0..first.texts.len()).map(|index| single(first, index));
                firsts.chain((0..second.texts.len()).map(|index| single(second, index))).collect()
            }
        };
        assert!(inputs.len() <= 2 * INPUTS_MAX, "each side was bounded");
        Ok(common.request(inputs, *last_text_max))
    }

    /// A score of each of the second side's texts.
    pub(super) fn scores(&self, common: &Common, pooled: &[Pooled], pooling: &Pooling) -> Vec<f64> {
        match &pooling.gives {
            Gives::Classes { activation, .. } => {
                let score = |pooled: &Pooled| match common.is_finished {
                    Some(false) => f64::from(pooled.vector[0]),
                    None | Some(true) => f64::from(activated(&pooled.vector, *activation)[0]),
                };
                pooled.iter().map(score).collect()
            }
            Gives::Embedding { .. } => {
                let (firsts, seconds) = pooled.split_at(self.first.texts.len());
                let of =
                    |(index, second): (usize, &Pooled)| cosine(&firsts[index % firsts.len()].vector, &second.vector);
                seconds.iter().enumerate().map(of).collect()
            }
        }
    }
}

/// A whole response.
pub(crate) type Scores<'a> = List<'a, ScoreItem>;

/// Of one input.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Score")]
pub(crate) struct ScoreItem {
    index: usize,
    object: &'static str,
    score: f64,
}
