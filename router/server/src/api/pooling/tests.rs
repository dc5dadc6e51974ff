//! Bodies in, inputs for the engine and responses out.

use pelton_engine::{Activation, Gives, Pooling};
use serde_json::{Value, json};

use super::{classify::ClassifyRequest, embeddings::EmbeddingRequest, rerank::RerankRequest, score::ScoreRequest};
use crate::{
    api::stream::Head,
    generate::{PoolContent, PoolRequest, Pooled, Truncation},
};

fn head() -> Head {
    Head { id: "embd-1".to_owned(), object: "list", created: 5, model: "tiny".to_owned(), system_fingerprint: None }
}

fn embedding_model(normalize: bool) -> Pooling {
    Pooling { width: 3, is_bidirectional: true, gives: Gives::Embedding { normalize } }
}

fn classifier(labels: &[&str]) -> Pooling {
    let labels: Vec<String> = labels.iter().map(|label| (*label).to_owned()).collect();
    let width = u32::try_from(labels.len()).expect("few");
    Pooling { width, is_bidirectional: true, gives: Gives::Classes { labels, activation: Activation::Sigmoid } }
}

fn pooled(vectors: &[&[f32]]) -> Vec<Pooled> {
    vectors.iter().map(|vector| Pooled { vector: (*vector).into(), tokens: 4 }).collect()
}

fn parsed(body: Vec<u8>) -> Value {
    serde_json::from_slice(&body).expect("JSON")
}

fn embeddings(body: &Value) -> Result<EmbeddingRequest, String> {
    EmbeddingRequest::read(body.to_string().as_bytes()).map_err(|error| error.to_string())
}

fn inputs(request: &PoolRequest) -> Vec<(&str, &PoolContent)> {
    request.inputs.iter().map(|input| (input.param.as_str(), &input.content)).collect()
}

#[test]
fn what_the_peers_clients_send_for_embeddings_is_known() {
    let with = |name: &str, value: Value| embeddings(&json!({ "input": "hi", name: value }));
    assert!(with("truncation_side", json!("right")).is_ok());
    let told = with("truncation_side", json!("left")).expect_err("not served");
    assert!(told.contains("allowed: null or \"right\""), "{told}");
    for name in ["chat_template_kwargs", "mm_processor_kwargs", "media_io_kwargs", "vllm_xargs"] {
        assert!(with(name, json!({})).is_ok(), "{name}");
        let told = with(name, json!({ "a": 1 })).expect_err("not served");
        assert!(told.contains("not served yet"), "{told}");
    }
}

#[test]
fn an_input_is_a_text_or_tokens_or_a_list_of_them() {
    let text = |text: &str| PoolContent::Text(text.to_owned());
    let ids = |ids: &[u32]| PoolContent::Ids(ids.to_vec());
    for (input, expected) in [
        (json!("a"), vec![("input", text("a"))]),
        (json!(["a"]), vec![("input[0]", text("a"))]),
        (json!(["a", "b"]), vec![("input[0]", text("a")), ("input[1]", text("b"))]),
        (json!([1, 2]), vec![("input", ids(&[1, 2]))]),
        (json!([[1], [2, 3]]), vec![("input[0]", ids(&[1])), ("input[1]", ids(&[2, 3]))]),
    ] {
        let request = embeddings(&json!({ "input": input })).expect("right").pool_request();
        let expected: Vec<(&str, &PoolContent)> = expected.iter().map(|(param, content)| (*param, content)).collect();
        assert_eq!(inputs(&request), expected, "{input}");
    }
}

#[test]
fn what_is_wrong_is_named() {
    for (body, expected) in [
        (json!({}), "`input` is missing"),
        (json!({"input": ""}), "`input` is empty"),
        (json!({"input": []}), "`input` is an empty list"),
        (json!({"input": ["a", ""]}), "`input[1]` is empty"),
        (json!({"input": [[1], []]}), "`input[1]` is empty"),
        (json!({"input": ["a", 5]}), "`input` is a list whose item 1 is 5"),
        (json!({"input": vec!["a"; 2049]}), "`input` is a list of 2049 items; allowed: 1 to 2048 items"),
        (json!({"input": "a", "encoding_format": "hex"}), "`encoding_format` is the text \"hex\"; allowed: `float` or"),
        (json!({"input": "a", "truncate_prompt_tokens": 0}), "`truncate_prompt_tokens` is 0; allowed: -1"),
        (json!({"input": "a", "truncate_prompt_tokens": -2}), "`truncate_prompt_tokens` is -2"),
        (json!({"input": "a", "normalize": true, "use_activation": false}), "`normalize` is true and `use_activation`"),
        (json!({"input": "a", "cache_salt": ""}), "`cache_salt` is 0 characters; allowed: 1 to 128 characters"),
        (json!({"input": "a", "dimension": 5}), "did you mean `dimensions`?"),
    ] {
        let error = embeddings(&body).expect_err("it is wrong");
        assert!(error.contains(expected), "{error}\nshould say: {expected}");
    }
    assert!(embeddings(&json!({"input": vec!["a"; 2048]})).is_ok());
}

#[test]
fn options_reach_the_engine() {
    let body = json!({"input": "a", "truncate_prompt_tokens": -1, "add_special_tokens": false, "priority": -3, "user": "u",
               "cache_salt": "mine"});
    let request = embeddings(&body).expect("right").pool_request();
    let (truncation, priority) = (request.truncation, request.priority);
    assert_eq!((truncation, request.add_special, priority), (Truncation::ToModel, false, Some(-3)));
    assert_eq!((request.user.as_deref(), request.cache_salt.as_deref()), (Some("u"), Some("mine")));
    let request = embeddings(&json!({"input": "a", "truncate_prompt_tokens": 7})).expect("right").pool_request();
    assert_eq!((request.truncation, request.add_special), (Truncation::To(7), true));
}

#[test]
fn embeddings_are_cut_and_normalised_as_the_model_or_the_request_wants() {
    let vectors = pooled(&[&[3.0, 4.0, 12.0]]);
    let told = |extra: Value, normalize| {
        let mut body = json!({"input": "a"});
        body.as_object_mut().expect("an object").extend(extra.as_object().expect("an object").clone());
        let request = embeddings(&body).expect("right");
        request.check(&embedding_model(normalize)).map_err(|error| error.to_string())?;
        let told = parsed(request.respond(&head(), "embedding", &vectors, &embedding_model(normalize)));
        Ok::<_, String>(told["data"][0]["embedding"].clone())
    };
    assert_eq!(told(json!({}), false), Ok(json!([3.0, 4.0, 12.0])));
    assert_eq!(told(json!({"dimensions": 2}), true), Ok(json!([0.6, 0.8])));
    assert_eq!(told(json!({"dimensions": 2, "normalize": false}), true), Ok(json!([3.0, 4.0])));
    assert_eq!(told(json!({"dimensions": 2, "use_activation": true}), false), Ok(json!([0.6, 0.8])));
    // 3.0 and 4.0 as 32 bits each, little-endian.
    assert_eq!(told(json!({"dimensions": 2, "encoding_format": "base64"}), false), Ok(json!("AABAQAAAgEA=")));
    for dimensions in [0, 4] {
        let error = told(json!({ "dimensions": dimensions }), false).expect_err("out of range");
        assert!(error.contains(&format!("`dimensions` is {dimensions}; allowed: 1 to 3")), "{error}");
    }
}

#[test]
fn a_response_names_its_vectors_in_order_and_counts_tokens() {
    let request = embeddings(&json!({"input": ["a", "b"]})).expect("right");
    let told = parsed(request.respond(&head(), "embedding", &pooled(&[&[1.0], &[2.0]]), &embedding_model(false)));
    assert_eq!(
        told,
        json!({
            "id": "embd-1", "object": "list", "created": 5, "model": "tiny",
            "data": [
                {"index": 0, "object": "embedding", "embedding": [1.0]},
                {"index": 1, "object": "embedding", "embedding": [2.0]},
            ],
            "usage": {"prompt_tokens": 8, "total_tokens": 8, "completion_tokens": 0},
        })
    );
    let told = parsed(request.respond(&head(), "pooling", &pooled(&[&[0.0]]), &classifier(&["only"])));
    assert_eq!(told["data"][0], json!({"index": 0, "object": "pooling", "data": [0.5]}));
}

#[test]
fn classes_come_with_the_likeliest_label() {
    let read = |body: Value| ClassifyRequest::read(body.to_string().as_bytes()).expect("right");
    let model = classifier(&["no", "yes"]);
    let vectors = pooled(&[&[0.0, 2.0], &[1.0, 1.0]]);
    let told = parsed(read(json!({"input": ["a", "b"], "use_activation": false})).respond(&head(), &vectors, &model));
    assert_eq!(told["data"][0], json!({"index": 0, "label": "yes", "probs": [0.0, 2.0], "num_classes": 2}));
    assert_eq!(told["data"][1]["label"], "no", "of equals the first");
    let told = parsed(read(json!({"input": ["a", "b"]})).respond(&head(), &vectors, &model));
    assert_eq!(told["data"][0]["probs"][0], 0.5);
}

#[test]
fn a_score_is_of_pairs_one_to_all_or_one_to_one() {
    let read = |body: Value| ScoreRequest::read(body.to_string().as_bytes()).map_err(|error| error.to_string());
    let pair = |first: &str, second: &str| PoolContent::Pair(first.into(), second.to_owned());
    for body in [
        json!({"text_1": "q", "text_2": ["a", "b"]}),
        json!({"queries": "q", "documents": ["a", {"text": "b"}]}),
        json!({"queries": ["q"], "items": ["a", "b"]}),
        json!({"data_1": "q", "data_2": ["a", "b"]}),
    ] {
        let request =
            read(body.clone()).expect("right").pool_request(&classifier(&["only"]), "/score").expect("one class");
        let contents: Vec<&PoolContent> = request.inputs.iter().map(|input| &input.content).collect();
        assert_eq!(contents, [&pair("q", "a"), &pair("q", "b")], "{body}");
    }
    let request = read(json!({"text_1": ["q", "r"], "text_2": ["a", "b"]})).expect("right");
    let pairs = request.pool_request(&classifier(&["only"]), "/score").expect("one class");
    assert_eq!(inputs(&pairs)[1], ("text_2[1]", &pair("r", "b")));
    let alone = request.pool_request(&embedding_model(true), "/score").expect("embeddings");
    assert_eq!(alone.inputs.len(), 4);
    let vectors = pooled(&[&[1.0, 0.0], &[0.0, 1.0], &[2.0, 0.0], &[0.0, -3.0]]);
    let told = parsed(request.respond(&head(), &vectors, &embedding_model(false)));
    assert_eq!(told["data"][1], json!({"index": 1, "object": "score", "score": -1.0}));
    let several = request.pool_request(&classifier(&["a", "b"]), "/v1/score").expect_err("two classes").to_string();
    assert!(several.contains("/score with a model of 2 classes is not for it; use /classify"), "{several}");
    for (body, expected) in [
        (json!({"text_1": "q"}), "`text_2` is missing"),
        (json!({"documents": "q", "text_1": "q"}), "`queries` is missing"),
        (
            json!({"queries": "q", "text_1": "q", "text_2": "a"}),
            "`queries` cannot go together with `text_1` and `text_2`",
        ),
        (json!({"text_1": ["q", "r"], "text_2": ["a"]}), "`text_1` is a list of 2 texts, and `text_2` one of 1"),
        (json!({"text_1": "q", "text_2": [5]}), "`text_2[0]` is 5; allowed: a text"),
        (json!({"text_1": "q", "text_2": [{"image": "x"}]}), "`text_2[0].text` is missing"),
    ] {
        let error = read(body).expect_err("it is wrong");
        assert!(error.contains(expected), "{error}\nshould say: {expected}");
    }
}

#[test]
fn documents_come_best_first_and_of_equals_the_first() {
    let read = |body: Value| RerankRequest::read(body.to_string().as_bytes()).map_err(|error| error.to_string());
    let body = json!({"query": "q", "documents": ["a", {"text": "b"}, "c"], "max_tokens_per_doc": 9});
    let request = read(body).expect("right");
    let model = classifier(&["only"]);
    let asked = request.pool_request(&model, "/rerank").expect("one class");
    assert_eq!((asked.inputs.len(), asked.last_text_max), (3, Some(9)));
    assert_eq!(inputs(&asked)[1], ("documents[1]", &PoolContent::Pair("q".into(), "b".to_owned())));
    let vectors = pooled(&[&[-1.0], &[5.0], &[-1.0]]);
    let told = parsed(request.respond(&head(), &vectors, &model));
    let order: Vec<u64> =
        told["results"].as_array().expect("a list").iter().filter_map(|r| r["index"].as_u64()).collect();
    assert_eq!(order, [1, 0, 2]);
    assert_eq!(told["results"][0]["document"], json!({"text": "b"}));
    assert!(told["results"][0]["relevance_score"].as_f64().is_some_and(|score| score > 0.99));
    for (documents, expected) in [(json!(["a"]), "documents[0]"), (json!("a"), "documents")] {
        let asked =
            RerankRequest::read(json!({"query": "q", "documents": documents}).to_string().as_bytes()).expect("right");
        for pooling in [&embedding_model(true), &classifier(&["one"])] {
            let request = asked.pool_request(pooling, "/rerank").expect("it can");
            assert_eq!(inputs(&request).last().map(|(param, _)| *param), Some(expected));
        }
    }
    let short = json!({"query": "q", "documents": ["a", "b", "c"], "top_n": 1, "return_documents": false});
    let told = parsed(read(short).expect("right").respond(&head(), &vectors, &model));
    assert_eq!(told["results"].as_array().map(Vec::len), Some(1));
    assert_eq!(told["results"][0].get("document"), None);
    for (body, expected) in [
        (
            json!({"query": "q", "documents": ["a"], "rank_fields": ["title"]}),
            "`rank_fields` is a list; allowed: null, []",
        ),
        (json!({"documents": ["a"]}), "`query` is missing"),
        (json!({"query": "q"}), "`documents` is missing"),
        (json!({"query": "q", "documents": []}), "`documents` is an empty list"),
        (json!({"query": "q", "documents": ["a"], "max_tokens_per_doc": 0}), "`max_tokens_per_doc` is 0"),
    ] {
        let error = read(body).expect_err("it is wrong");
        assert!(error.contains(expected), "{error}\nshould say: {expected}");
    }
}
