//! `/v1/embeddings`, and `/pooling`, which gives the vectors of any model that makes some.

use base64::{Engine as _, prelude::BASE64_STANDARD};
use pelton_engine::{Gives, Pooling};
use schemars::JsonSchema;
use serde::Serialize;

use super::{
    List, PoolUsage,
    fields::{COMMON, Common, INPUTS, PEERS, read_input},
    json,
    vectors::{activated, embedding},
};
use crate::{
    api::{
        fields::Fields,
        shape::{Kind, Shape, optional, with_default},
        stream::Head,
        unknown::Given,
        unserved::{self, Unserved, refuse_all},
    },
    error::ApiError,
    generate::{PoolInput, PoolRequest, Pooled},
};

/// The body of a request for vectors.
pub(crate) const EMBEDDING: Shape = Shape {
    name: "EmbeddingRequest",
    about: "Texts that are to become vectors.",
    fields: &[
        &[
            INPUTS,
            with_default(
                "encoding_format",
                Kind::Word(ENCODINGS),
                "\"float\"",
                "How numbers are written; `base64`: 32 bits each, little-endian.",
            ),
            optional(
                "dimensions",
                Kind::COUNT,
                "So many first numbers of each vector, at least 1 and at most the model's own.",
            ),
        ],
        COMMON,
    ],
    unserved: &[UNSERVED, PEERS, unserved::BOTH, unserved::MEDIA],
};

/// What the peer takes beside.
const UNSERVED: &[Unserved] = &[
    ("embed_dtype", &["\"float32\""], "numbers of other formats"),
    ("endianness", &["\"native\"", "\"little\""], "numbers in another order of bytes"),
    ("messages", &[], "vectors of chats"),
    ("padding", &[], "padding"),
    ("task", &[], "choosing what a model gives (it gives one thing)"),
];

const ENCODINGS: &[&str] = &["float", "base64"];

/// How numbers are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Encoding {
    Float,
    /// 32 bits each, little-endian.
    Base64,
}

/// Texts that are to become vectors.
#[derive(Debug)]
pub(crate) struct EmbeddingRequest {
    common: Common,
    inputs: Vec<PoolInput>,
    dimensions: Option<u32>,
    encoding: Encoding,
}

impl EmbeddingRequest {
    pub(crate) fn read<'a>(body: impl Into<Given<'a>>) -> Result<Self, ApiError> {
        let mut fields = Fields::of_body(body)?.spelled(&EMBEDDING)?;
        refuse_all(&mut fields, UNSERVED)?;
        let encoding = match fields.one_of("encoding_format", ENCODINGS, "`float` or `base64`")? {
            Some("base64") => Encoding::Base64,
            _ => Encoding::Float,
        };
        let dimensions = fields.count("dimensions", "an integer from 1 to the width of the model's vectors")?;
        let common = Common::read(&mut fields)?;
        let inputs = read_input(&mut fields)?;
        fields.finish(&EMBEDDING)?;
        Ok(Self { common, inputs, dimensions, encoding })
    }

    pub(crate) fn model(&self) -> Option<&str> {
        self.common.model.as_deref()
    }

    pub(crate) fn take_request_id(&mut self) -> Option<String> {
        self.common.request_id.take()
    }

    /// Checks what depends on the model.
    pub(crate) fn check(&self, pooling: &Pooling) -> Result<(), ApiError> {
        let Some(dimensions) = self.dimensions else { return Ok(()) };
        match pooling.gives {
            Gives::Embedding { .. } if (1..=pooling.width).contains(&dimensions) => Ok(()),
            Gives::Embedding { .. } => {
                Err(ApiError::invalid("dimensions", dimensions, format!("1 to {}, the model's own", pooling.width)))
            }
            Gives::Classes { .. } => {
                let reason = "is for embeddings, and the model gives classes: leave it out";
                Err(ApiError::Conflict { param: "dimensions".to_owned(), reason: reason.to_owned() })
            }
        }
    }

    /// What the engine has to do for it.
    pub(crate) fn pool_request(&mut self) -> PoolRequest {
        let inputs = std::mem::take(&mut self.inputs);
        self.common.request(inputs, None)
    }

    /// The response, as JSON.
    pub(crate) fn respond(&self, head: &Head, object: &'static str, pooled: &[Pooled], pooling: &Pooling) -> Vec<u8> {
        let finished = |pooled: &Pooled| match &pooling.gives {
            Gives::Embedding { normalize } => {
                let dimensions = self.dimensions.map(|dimensions| dimensions as usize);
                embedding(&pooled.vector, dimensions, self.common.is_finished.unwrap_or(*normalize))
            }
            Gives::Classes { activation, .. } if self.common.is_finished != Some(false) => {
                activated(&pooled.vector, *activation)
            }
            Gives::Classes { .. } => pooled.vector.to_vec(),
        };
        let numbers = |vector: Vec<f32>| match self.encoding {
            Encoding::Float => Numbers::Floats(vector),
            Encoding::Base64 => {
                let bytes: Vec<u8> = vector.iter().flat_map(|number| number.to_le_bytes()).collect();
                Numbers::Base64(BASE64_STANDARD.encode(bytes))
            }
        };
        let usage = PoolUsage::of(pooled);
        let vectors = pooled.iter().map(finished).map(numbers).enumerate();
        if object == "embedding" {
            let data = vectors.map(|(index, embedding)| EmbeddingItem { index, object, embedding }).collect();
            json(&List { head, data, usage })
        } else {
            let data = vectors.map(|(index, data)| PoolingItem { index, object, data }).collect();
            json(&List { head, data, usage })
        }
    }
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(untagged)]
enum Numbers {
    Floats(Vec<f32>),
    Base64(String),
}

/// A whole response.
pub(crate) type Embeddings<'a> = List<'a, EmbeddingItem>;

/// Of one input.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Embedding")]
pub(crate) struct EmbeddingItem {
    index: usize,
    object: &'static str,
    embedding: Numbers,
}

/// A whole response.
pub(crate) type PooledVectors<'a> = List<'a, PoolingItem>;

/// Of one input.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "PooledVector")]
pub(crate) struct PoolingItem {
    index: usize,
    object: &'static str,
    data: Numbers,
}
