//! `/rerank`, as Jina and Cohere have it: documents, best first.

use pelton_engine::Pooling;
use schemars::JsonSchema;
use serde::Serialize;

use super::{
    PoolUsage,
    fields::{COMMON, Common, PEERS, TEXTS, read_texts},
    json,
    score::{Pairs, Side},
};
use crate::{
    api::{
        fields::Fields,
        shape::{Kind, Most, Shape, needed, optional, with_default},
        stream::Head,
        unknown::Given,
        unserved::{self, Unserved, refuse_all},
    },
    error::ApiError,
    generate::{PoolRequest, Pooled, told},
};

/// The body of a request for an order.
pub(crate) const RERANK: Shape = Shape {
    name: "RerankRequest",
    about: "A query, and documents to be put in order.",
    fields: &[
        &[
            needed("query", Kind::TEXT, "What the documents are to suit."),
            needed("documents", TEXTS, "Up to 2048 documents."),
            with_default("top_n", Kind::COUNT, "0", "So many best ones are told; 0: all."),
            with_default("return_documents", Kind::Flag, "true", "Whether the documents' texts are told again."),
            optional(
                "max_tokens_per_doc",
                Kind::Integer(1, Most::U32),
                "Only so many first tokens of each document count.",
            ),
        ],
        COMMON,
    ],
    unserved: &[UNSERVED, PEERS, unserved::BOTH, unserved::MEDIA],
};

/// What Cohere and Jina take beside.
const UNSERVED: &[Unserved] = &[
    ("max_chunks_per_doc", &["1"], "parts of documents (use `max_tokens_per_doc`)"),
    ("rank_fields", &["[]", "[\"text\"]"], "documents of several fields (write them as one text)"),
    ("return_embeddings", &["false"], "vectors beside scores (use `/v1/embeddings`)"),
];

/// A query, and documents to be put in order.
#[derive(Debug)]
pub(crate) struct RerankRequest {
    common: Common,
    pairs: Pairs,
    /// 0: all.
    top_n: usize,
    return_documents: bool,
}

impl RerankRequest {
    pub(crate) fn read<'a>(body: impl Into<Given<'a>>) -> Result<Self, ApiError> {
        let mut fields = Fields::of_body(body)?.spelled(&RERANK)?;
        refuse_all(&mut fields, UNSERVED)?;
        let common = Common::read(&mut fields)?;
        let query: String = fields.need("query", "a text")?;
        let Some(raw) = fields.raw("documents") else {
            return Err(ApiError::Missing {
                param: "documents".to_owned(),
                allowed: "a list of texts or of objects with a `text`",
            });
        };
        let texts = read_texts(&fields, "documents", raw)?;
        let top_n = fields.count("top_n", told::COUNT)?.unwrap_or(0) as usize;
        let return_documents = fields.flag("return_documents")?.unwrap_or(true);
        let last_text_max = fields.count("max_tokens_per_doc", told::COUNT_FROM_1)?;
        if last_text_max == Some(0) {
            return Err(ApiError::invalid("max_tokens_per_doc", 0, told::COUNT_FROM_1));
        }
        fields.finish(&RERANK)?;
        let first = Side { param: "query".to_owned(), texts: vec![query], is_list: false };
        let second = Side { param: "documents".to_owned(), texts, is_list: raw.get().starts_with('[') };
        Ok(Self { common, pairs: Pairs { first, second, last_text_max }, top_n, return_documents })
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
        let mut ranked: Vec<(usize, f64)> =
            self.pairs.scores(&self.common, pooled, pooling).into_iter().enumerate().collect();
        ranked.sort_by(|one, other| other.1.total_cmp(&one.1)); // of equals the first stays first
        if self.top_n > 0 {
            ranked.truncate(self.top_n);
        }
        let documents = &self.pairs.second.texts;
        let results = ranked.into_iter().map(|(index, relevance_score)| RerankItem {
            index,
            document: self.return_documents.then(|| Document { text: &documents[index] }),
            relevance_score,
        });
        json(&RerankResponse {
            id: &head.id,
            model: &head.model,
            usage: PoolUsage::of(pooled),
            results: results.collect(),
        })
    }
}

/// A whole response.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct RerankResponse<'a> {
    id: &'a str,
    model: &'a str,
    usage: PoolUsage,
    results: Vec<RerankItem<'a>>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "RankedDocument")]
struct RerankItem<'a> {
    index: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    document: Option<Document<'a>>,
    relevance_score: f64,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "DocumentText")]
struct Document<'a> {
    text: &'a str,
}
