use proptest::prelude::*;
use rmpv::Value;

use super::*;

fn plain() -> Stored {
    Stored {
        hashes: vec![7],
        parent: None,
        tokens: vec![1, 2],
        block_size: 2,
        lora: None,
        medium: Medium::Device,
        extra_keys: vec![],
    }
}

/// The batch of this name in golden.py, and its rank.
fn golden(name: &str) -> (Batch, Option<u32>) {
    let text = |text: &str| ExtraKey::Text(text.into());
    let media = |identifier: &str, offset| ExtraKey::Media { identifier: identifier.into(), offset };
    let removed = |hashes: &[u64], medium| KvEvent::Removed { hashes: hashes.into(), medium };
    let (timestamp, events, rank) = match name {
        "nothing" => (0.0, vec![], None),
        "cleared" => (1_763_744_400.25, vec![KvEvent::Cleared], Some(0)),
        "plain" => (1.5, vec![KvEvent::Stored(plain())], None),
        "continued" => {
            let stored = Stored {
                hashes: vec![u64::MAX, 1 << 63],
                parent: Some(300),
                tokens: vec![0, 127, 128, 65536],
                lora: Some("adapter".into()),
                medium: Medium::Host,
                ..plain()
            };
            (1.5, vec![KvEvent::Stored(stored)], Some(3))
        }
        "keys" => {
            let first = vec![text("adapter"), media("image", 3), media("video", -70000), text("salt")];
            let stored = Stored {
                hashes: vec![1, 2, 3],
                tokens: vec![9, 9, 9],
                block_size: 1,
                lora: Some("adapter".into()),
                extra_keys: vec![first, vec![], vec![ExtraKey::Digest([0, 255].repeat(16))]],
                ..plain()
            };
            (2.0, vec![KvEvent::Stored(stored)], Some(1))
        }
        "removed" => {
            let events = vec![removed(&[255, 256, 65535, 1 << 32], Medium::Storage), removed(&[], Medium::Device)];
            (-1.0, events, None)
        }
        "long" => {
            let stored = Stored {
                hashes: (0..20).collect(),
                parent: Some(5),
                tokens: (0..320).collect(),
                block_size: 16,
                lora: Some("x".repeat(300)),
                ..plain()
            };
            (3.0, vec![removed(&[1], Medium::Device), KvEvent::Stored(stored), KvEvent::Cleared], Some(u32::MAX))
        }
        _ => panic!("golden.py has a batch of a name unknown here: {name}"),
    };
    (Batch { timestamp, events }, rank)
}

#[test]
fn batches_are_byte_for_byte_what_msgspec_makes_of_vllms_structs() {
    // B:KV3: an event without an adapter has `lora_name` nil. C:K4: both forms, with tokens and extra keys.
    let lines: Vec<_> = include_str!("golden.txt").lines().collect();
    assert_eq!(lines.len(), 14);
    for line in lines {
        let [name, form, expected] = line.split(' ').collect::<Vec<_>>().try_into().expect("three words");
        let (batch, rank) = golden(name);
        batch.assert_whole();
        let encoding = if form == "map" { Encoding::Map } else { Encoding::Array };
        let hex: String = encode(&batch, rank, encoding).iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, expected, "{name}, {form}");
    }
}

fn keys() -> impl Strategy<Value = ExtraKey> {
    prop_oneof![
        ".{0,40}".prop_map(ExtraKey::Text),
        (".{0,40}", any::<i64>()).prop_map(|(identifier, offset)| ExtraKey::Media { identifier, offset }),
        prop::collection::vec(any::<u8>(), 0..40).prop_map(ExtraKey::Digest),
    ]
}

fn media() -> impl Strategy<Value = Medium> {
    prop_oneof![Just(Medium::Device), Just(Medium::Host), Just(Medium::Storage)]
}

fn stored() -> impl Strategy<Value = Stored> {
    let lora = prop::option::of(".{0,300}");
    (0usize..40, 1u32..20, any::<bool>(), prop::option::of(any::<u64>()), lora, media()).prop_flat_map(
        |(blocks, block_size, has_keys, parent, lora, medium)| {
            let hashes = prop::collection::vec(any::<u64>(), blocks);
            let tokens = prop::collection::vec(any::<u32>(), blocks * block_size as usize);
            let keys = prop::collection::vec(prop::collection::vec(keys(), 0..4), if has_keys { blocks } else { 0 });
            (hashes, tokens, keys).prop_map(move |(hashes, tokens, extra_keys)| Stored {
                hashes,
                parent,
                tokens,
                block_size,
                lora: lora.clone(),
                medium,
                extra_keys,
            })
        },
    )
}

fn events() -> impl Strategy<Value = KvEvent> {
    prop_oneof![
        stored().prop_map(KvEvent::Stored),
        (prop::collection::vec(any::<u64>(), 0..40), media())
            .prop_map(|(hashes, medium)| KvEvent::Removed { hashes, medium }),
        Just(KvEvent::Cleared),
    ]
}

/// An event as another library's decoder has it: its name, then its fields by name, nil where a map has none.
fn read_event(value: &Value, encoding: Encoding) -> (String, Vec<(&'static str, Value)>) {
    const STORED: &[&str] = &[
        "block_hashes",
        "parent_block_hash",
        "token_ids",
        "block_size",
        "lora_id",
        "medium",
        "lora_name",
        "extra_keys",
        "group_idx",
        "kv_cache_spec_kind",
        "kv_cache_spec_sliding_window",
    ];
    const REMOVED: &[&str] = &["block_hashes", "medium", "group_idx"];
    let tag = match encoding {
        Encoding::Map => &value["type"],
        Encoding::Array => &value[0],
    };
    let tag = tag.as_str().expect("an event has a name").to_owned();
    let names = match tag.as_str() {
        "BlockStored" => STORED,
        "BlockRemoved" => REMOVED,
        _ => &[],
    };
    if encoding == Encoding::Array {
        assert_eq!(value.as_array().unwrap().len(), 1 + names.len(), "nothing is left out of an array");
    }
    let field = |at: usize, name: &str| match encoding {
        Encoding::Map => value[name].clone(),
        Encoding::Array => value[1 + at].clone(),
    };
    (tag, names.iter().enumerate().map(|(at, &name)| (name, field(at, name))).collect())
}

fn list<T>(items: &[T], value: impl Fn(&T) -> Value) -> Value {
    Value::Array(items.iter().map(value).collect())
}

fn optional<T>(item: Option<T>) -> Value
where
    Value: From<T>,
{
    item.map_or(Value::Nil, Value::from)
}

fn expected_keys(keys: &[ExtraKey]) -> Value {
    match keys.is_empty() {
        true => Value::Nil,
        false => list(keys, |key| match key {
            ExtraKey::Text(text) => text.as_str().into(),
            ExtraKey::Media { identifier, offset } => Value::Array(vec![identifier.as_str().into(), (*offset).into()]),
            ExtraKey::Digest(digest) => digest.as_slice().into(),
        }),
    }
}

fn expected_event(event: &KvEvent) -> (String, Vec<(&'static str, Value)>) {
    match event {
        KvEvent::Stored(stored) => {
            let keys = (!stored.extra_keys.is_empty()).then(|| list(&stored.extra_keys, |keys| expected_keys(keys)));
            let fields = vec![
                ("block_hashes", list(&stored.hashes, |&hash| hash.into())),
                ("parent_block_hash", optional(stored.parent)),
                ("token_ids", list(&stored.tokens, |&token| token.into())),
                ("block_size", stored.block_size.into()),
                ("lora_id", Value::Nil),
                ("medium", stored.medium.name().into()),
                ("lora_name", optional(stored.lora.as_deref())),
                ("extra_keys", keys.unwrap_or(Value::Nil)),
                ("group_idx", Value::Nil),
                ("kv_cache_spec_kind", Value::Nil),
                ("kv_cache_spec_sliding_window", Value::Nil),
            ];
            ("BlockStored".into(), fields)
        }
        KvEvent::Removed { hashes, medium } => {
            let hashes = list(hashes, |&hash| hash.into());
            let fields = vec![("block_hashes", hashes), ("medium", medium.name().into()), ("group_idx", Value::Nil)];
            ("BlockRemoved".into(), fields)
        }
        KvEvent::Cleared => ("AllBlocksCleared".into(), vec![]),
    }
}

proptest! {
    #[test]
    fn another_librarys_decoder_reads_what_was_written(
        timestamp in any::<f64>().prop_filter("NaN equals nothing", |it| !it.is_nan()),
        events in prop::collection::vec(events(), 0..20),
        rank in prop::option::of(any::<u32>()),
        is_array in any::<bool>(),
    ) {
        let encoding = if is_array { Encoding::Array } else { Encoding::Map };
        let batch = Batch { timestamp, events };
        let bytes = encode(&batch, rank, encoding);
        let mut rest = &bytes[..];
        let value = rmpv::decode::read_value(&mut rest).unwrap();
        prop_assert!(rest.is_empty(), "nothing follows the batch");
        prop_assert_eq!(value.as_array().unwrap().len(), 3);
        prop_assert_eq!(&value[0], &Value::F64(timestamp));
        prop_assert_eq!(&value[2], &optional(rank));
        let read: Vec<_> = value[1].as_array().unwrap().iter().map(|event| read_event(event, encoding)).collect();
        let expected: Vec<_> = batch.events.iter().map(expected_event).collect();
        prop_assert_eq!(read, expected);
    }
}
