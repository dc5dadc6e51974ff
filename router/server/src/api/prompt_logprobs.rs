//! Log-probabilities of the prompt's tokens, in vLLM's form: nothing for the first token, which nothing comes before, then an
//! object for each, by token id.

use pelton_engine::{TokenId, TokenScore};
use pelton_text::Tokenizer;
use schemars::JsonSchema;
use serde::{Serialize, Serializer};

use super::{
    logprobs::{finite, text_of},
    shape::{Field, Kind, Most, optional},
};

/// The field that asks for them.
pub(super) const PROMPT_LOGPROBS: Field = optional(
    "prompt_logprobs",
    Kind::Integer(0, Most::Logprobs),
    "How many likeliest tokens are told beside each token of the prompt. Such a prompt is computed whole, whatever is cached.",
);

/// A list as long as the prompt.
#[derive(Debug, Serialize)]
pub(crate) struct PromptLogprobs(Vec<Option<ById>>);

impl JsonSchema for PromptLogprobs {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "PromptLogprobs".into()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        Vec::<Option<std::collections::BTreeMap<String, PromptLogprob>>>::json_schema(generator)
    }
}

/// The token that stands there first, then the likeliest others.
#[derive(Debug)]
struct ById(Vec<(TokenId, PromptLogprob)>);

#[derive(Debug, Serialize, JsonSchema)]
struct PromptLogprob {
    logprob: f32,
    /// 1: the likeliest.
    rank: u32,
    decoded_token: String,
}

impl Serialize for ById {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(token, logprob)| (token, logprob)))
    }
}

impl PromptLogprobs {
    /// `top`: how many of the likeliest were asked for here. They may have been asked for elsewhere, too.
    pub(crate) fn new(tokenizer: &Tokenizer, prompt: &[TokenId], scores: &[TokenScore], top: u32) -> Self {
        let entry = |token, logprob, rank| {
            let decoded_token = text_of(tokenizer, token).into_owned();
            (token, PromptLogprob { logprob: finite(logprob), rank, decoded_token })
        };
        let behind_first = prompt.iter().skip(1).zip(scores).map(|(&token, score)| {
            let likeliest = (1..).zip(&score.logprobs.top).take(top as usize);
            let others = likeliest.filter(|(_, (other, _))| *other != token);
            let own = entry(token, score.logprobs.chosen, score.rank);
            let others = others.map(|(rank, &(other, logprob))| entry(other, logprob, rank));
            Some(ById(std::iter::once(own).chain(others).collect()))
        });
        Self(std::iter::once(None).chain(behind_first).collect())
    }
}

#[cfg(test)]
mod tests {
    use pelton_engine::TokenLogprobs;

    use super::*;
    use crate::generate::testing::tokenizer;

    #[test]
    fn the_first_token_has_none_and_the_others_come_before_the_likeliest() {
        let logprobs = TokenLogprobs { chosen: f32::NEG_INFINITY, top: vec![(66, -0.5), (67, -1.0)] };
        let unlikely = TokenScore { rank: 7, logprobs: logprobs.clone() };
        let likely = TokenScore { rank: 1, logprobs: TokenLogprobs { chosen: -0.5, ..logprobs } };
        let shown = |top| {
            let shown = PromptLogprobs::new(&tokenizer(), &[65, 65, 66], &[unlikely.clone(), likely.clone()], top);
            serde_json::to_string(&shown).expect("plain")
        };
        let (a, b) = (
            r#""65":{"logprob":-9999.0,"rank":7,"decoded_token":"A"}"#,
            r#""66":{"logprob":-0.5,"rank":1,"decoded_token":"B"}"#,
        );
        assert_eq!(shown(0), format!("[null,{{{a}}},{{{b}}}]"));
        assert_eq!(shown(1), format!("[null,{{{a},{b}}},{{{b}}}]"));
        let single = PromptLogprobs::new(&tokenizer(), &[65], &[], 1);
        assert_eq!(serde_json::to_string(&single).expect("plain"), "[null]");
    }
}
