//! `/classify`: of each text the likeliest class, and the probability of all.

use pelton_engine::{Gives, Pooling};
use schemars::JsonSchema;
use serde::Serialize;

use super::{
    List, PoolUsage,
    fields::{COMMON, Common, INPUTS, PEERS, read_input},
    json,
    vectors::activated,
};
use crate::{
    api::{fields::Fields, shape::Shape, stream::Head, unknown::Given, unserved},
    error::ApiError,
    generate::{PoolInput, PoolRequest, Pooled},
};

/// The body of a request for classes.
pub(crate) const CLASSIFY: Shape = Shape {
    name: "ClassifyRequest",
    about: "Texts that are to be told into classes.",
    fields: &[&[INPUTS], COMMON],
    unserved: &[PEERS, unserved::BOTH, unserved::MEDIA],
};

/// Texts that are to be told into classes.
#[derive(Debug)]
pub(crate) struct ClassifyRequest {
    common: Common,
    inputs: Vec<PoolInput>,
}

impl ClassifyRequest {
    pub(crate) fn read<'a>(body: impl Into<Given<'a>>) -> Result<Self, ApiError> {
        let mut fields = Fields::of_body(body)?.spelled(&CLASSIFY)?;
        let common = Common::read(&mut fields)?;
        let inputs = read_input(&mut fields)?;
        fields.finish(&CLASSIFY)?;
        Ok(Self { common, inputs })
    }

    pub(crate) fn model(&self) -> Option<&str> {
        self.common.model.as_deref()
    }

    pub(crate) fn take_request_id(&mut self) -> Option<String> {
        self.common.request_id.take()
    }

    /// What the engine has to do for it.
    pub(crate) fn pool_request(&mut self) -> PoolRequest {
        let inputs = std::mem::take(&mut self.inputs);
        self.common.request(inputs, None)
    }

    /// The response, as JSON. The model gives classes: the caller has looked.
    pub(crate) fn respond(&self, head: &Head, pooled: &[Pooled], pooling: &Pooling) -> Vec<u8> {
        let Gives::Classes { labels, activation } = &pooling.gives else { panic!("the caller saw classes") };
        let item = |(index, pooled): (usize, &Pooled)| {
            let probs = match self.common.is_finished {
                Some(false) => pooled.vector.to_vec(),
                None | Some(true) => activated(&pooled.vector, *activation),
            };
            let likeliest = (0..probs.len()).rev().max_by(|&one, &other| probs[one].total_cmp(&probs[other]));
            let label = likeliest.and_then(|index| labels.get(index)).map(String::as_str);
            ClassifyItem { index, label, num_classes: probs.len(), probs }
        };
        json(&List { head, data: pooled.iter().enumerate().map(item).collect(), usage: PoolUsage::of(pooled) })
    }
}

/// A whole response.
pub(crate) type Classifications<'a> = List<'a, ClassifyItem<'a>>;

/// Of one input.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Classification")]
pub(crate) struct ClassifyItem<'a> {
    index: usize,
    label: Option<&'a str>,
    probs: Vec<f32>,
    num_classes: usize,
}
