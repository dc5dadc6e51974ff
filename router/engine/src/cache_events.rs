//! Tells readers outside what the prefix caches hold: one publisher per worker group, as vLLM has one per rank.
//!
//! The salt of requests is a secret-keyed number here already; readers see it as a text that tells requests with different
//! salts apart. After a batch that was dropped for want of room nobody can say what readers believe: they are told that all
//! is gone, and learn of blocks again as these are stored.

use std::{
    net::SocketAddr,
    time::{SystemTime, UNIX_EPOCH},
};

use pelton_core::{CacheChange, CacheScope, SpanKind};
use pelton_kv_events::{
    Batch, BindError, Endpoint, ExtraKey, KvEvent, Medium, Published, Publisher, PublisherOptions, Stored,
};

/// Where KV events go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheEventOptions {
    /// Of the first group; the others' ports follow it.
    pub endpoint: Endpoint,
    /// Where readers ask for what they have missed.
    pub replay_endpoint: Option<Endpoint>,
    /// First frame of every message.
    pub topic: String,
}

/// The publisher of one group.
pub(crate) struct CacheEvents {
    publisher: Publisher,
    /// Whether readers must first hear that nothing is there.
    is_unknown: bool,
}

impl CacheEvents {
    /// Of `groups` groups the one with this index.
    pub(crate) fn bind(options: &CacheEventOptions, index: usize, groups: usize) -> Result<Self, BindError> {
        let rank = u16::try_from(index).expect("groups are counted by u16");
        let publisher = Publisher::bind(PublisherOptions {
            replay_endpoint: options.replay_endpoint.as_ref().map(|endpoint| nth(endpoint, rank)),
            topic: options.topic.clone(),
            data_parallel_rank: (groups > 1).then_some(u32::from(rank)),
            ..PublisherOptions::new(nth(&options.endpoint, rank))
        })?;
        tracing::info!(group = index, "KV events are published at {}", publisher.endpoint());
        Ok(Self { publisher, is_unknown: true })
    }

    /// The group's worker is gone, and its blocks with it.
    pub(crate) fn lost(&mut self) {
        self.is_unknown = true;
        self.tell(Vec::new(), 1);
    }

    /// Passes on what has changed.
    pub(crate) fn tell(&mut self, changes: Vec<CacheChange>, block_size: u32) {
        if changes.is_empty() && !self.is_unknown {
            return;
        }
        let mut events = Vec::new();
        if std::mem::take(&mut self.is_unknown) {
            events.push(KvEvent::Cleared);
        }
        for change in changes {
            push(&mut events, change, block_size);
        }
        let timestamp = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        if let Published::Dropped(_) = self.publisher.publish(Batch { timestamp, events }) {
            self.is_unknown = true;
        }
    }
}

/// Adds a change; blocks that continue each other become one event.
fn push(events: &mut Vec<KvEvent>, change: CacheChange, block_size: u32) {
    match (change, events.last_mut()) {
        (CacheChange::Stored { block, parent, tokens, before, scope, medium }, last) => {
            let medium = published(medium);
            let lora = scope.as_deref().and_then(adapter);
            let extra = scope.map_or_else(Vec::new, |scope| extra_keys(&scope, before, block_size));
            match last {
                Some(KvEvent::Stored(run))
                    if run.medium == medium && parent.is_some() && run.hashes.last() == parent.as_ref() =>
                {
                    if !(extra.is_empty() && run.extra_keys.is_empty()) {
                        run.extra_keys.resize(run.hashes.len(), Vec::new());
                        run.extra_keys.push(extra);
                    }
                    run.hashes.push(block);
                    run.tokens.extend_from_slice(&tokens);
                }
                _ => events.push(KvEvent::Stored(Stored {
                    hashes: vec![block],
                    parent,
                    tokens: tokens.into(),
                    block_size,
                    lora,
                    medium,
                    extra_keys: if extra.is_empty() { Vec::new() } else { vec![extra] },
                })),
            }
        }
        (CacheChange::Removed { block, medium: from }, Some(KvEvent::Removed { hashes, medium }))
            if *medium == published(from) =>
        {
            hashes.push(block);
        }
        (CacheChange::Removed { block, medium }, _) => {
            events.push(KvEvent::Removed { hashes: vec![block], medium: published(medium) });
        }
    }
}

/// What a block's KV depends on besides its tokens, in upstream's order. The salt stands with the first block of a prompt
/// only: the others follow from it.
fn extra_keys(scope: &CacheScope, before: u32, block_size: u32) -> Vec<ExtraKey> {
    let hex = |digest: [u8; 16]| format!("{:032x}", u128::from_be_bytes(digest));
    let here = || scope.within(before * block_size..(before + 1) * block_size);
    let media = here().filter(|(_, span)| span.kind == SpanKind::Media);
    let embeddings = here().filter(|(_, span)| span.kind == SpanKind::Embeddings);
    let salt = (scope.salt != 0 && before == 0).then(|| ExtraKey::Text(format!("{:016x}", scope.salt)));
    adapter(scope)
        .map(ExtraKey::Text)
        .into_iter()
        .chain(media.map(|(offset, span)| ExtraKey::Media { identifier: hex(span.digest), offset }))
        .chain(salt)
        .chain(embeddings.map(|(_, span)| ExtraKey::Digest(span.digest.to_vec())))
        .collect()
}

/// The name by which readers know an adapter.
fn adapter(scope: &CacheScope) -> Option<String> {
    (scope.adapter != 0).then(|| format!("{:016x}", scope.adapter))
}

fn published(medium: pelton_core::Medium) -> Medium {
    match medium {
        pelton_core::Medium::Device => Medium::Device,
        pelton_core::Medium::Host => Medium::Host,
        pelton_core::Medium::Disk => Medium::Storage,
    }
}

/// The endpoint of the group with this index: the next ports, or a file beside the first.
fn nth(endpoint: &Endpoint, index: u16) -> Endpoint {
    match endpoint {
        _ if index == 0 => endpoint.clone(),
        Endpoint::Tcp(address) if address.port() == 0 => endpoint.clone(),
        Endpoint::Tcp(address) => Endpoint::Tcp(SocketAddr::new(address.ip(), address.port().saturating_add(index))),
        Endpoint::Ipc(path) => {
            let mut name = path.clone().into_os_string();
            name.push(format!(".{index}"));
            Endpoint::Ipc(name.into())
        }
    }
}

#[cfg(test)]
mod tests {
    use pelton_core::Span;

    use super::*;

    fn stored(block: u64, parent: Option<u64>, salt: u64) -> CacheChange {
        with_scope(block, parent, u32::from(parent.is_some()), CacheScope::salted(salt))
    }

    fn with_scope(block: u64, parent: Option<u64>, before: u32, scope: CacheScope) -> CacheChange {
        let medium = pelton_core::Medium::Device;
        CacheChange::Stored { block, parent, tokens: [1, 2].into(), before, scope: Some(scope.into()), medium }
    }

    #[test]
    fn blocks_that_continue_each_other_are_one_event_in_the_order_of_effect() {
        let mut events = Vec::new();
        for change in [
            stored(1, None, 7),
            stored(2, Some(1), 7),
            stored(9, Some(4), 0),
            CacheChange::Removed { block: 3, medium: pelton_core::Medium::Device },
            CacheChange::Removed { block: 2, medium: pelton_core::Medium::Device },
            CacheChange::Removed { block: 2, medium: pelton_core::Medium::Host },
            stored(2, Some(1), 7),
        ] {
            push(&mut events, change, 2);
        }
        let run = |hashes: &[u64], parent, extra_keys: Vec<Vec<ExtraKey>>| {
            KvEvent::Stored(Stored {
                hashes: hashes.to_vec(),
                parent,
                tokens: [1, 2].repeat(hashes.len()),
                block_size: 2,
                lora: None,
                medium: Medium::Device,
                extra_keys,
            })
        };
        let salt = ExtraKey::Text("0000000000000007".to_owned());
        assert_eq!(
            events,
            [
                run(&[1, 2], None, vec![vec![salt], vec![]]),
                run(&[9], Some(4), vec![]),
                KvEvent::Removed { hashes: vec![3, 2], medium: Medium::Device },
                KvEvent::Removed { hashes: vec![2], medium: Medium::Host },
                run(&[2], Some(1), vec![]),
            ]
        );
    }

    #[test]
    fn what_tokens_stand_for_is_told_with_each_block_that_it_reaches() {
        let span = |start, tokens, digest, kind| Span { start, tokens, digest: [digest; 16], kind };
        let spans = vec![span(3, 2, 0xab, SpanKind::Media), span(5, 1, 9, SpanKind::Embeddings)];
        let mut scope = CacheScope::salted(7).with_spans(spans).expect("apart");
        scope.adapter = 3;
        let mut events = Vec::new();
        for before in 0..4 {
            let block = u64::from(before) + 1;
            push(&mut events, with_scope(block, block.checked_sub(1).filter(|&p| p > 0), before, scope.clone()), 2);
        }
        let [KvEvent::Stored(run)] = &events[..] else { panic!("one run of blocks: {events:?}") };
        let text = |text: &str| ExtraKey::Text(text.to_owned());
        let adapter = || text("0000000000000003");
        let image = |offset| ExtraKey::Media { identifier: "ab".repeat(16), offset };
        assert_eq!(run.lora.as_deref(), Some("0000000000000003"));
        assert_eq!(
            run.extra_keys,
            [
                vec![adapter(), text("0000000000000007")],
                vec![adapter(), image(1)],
                vec![adapter(), image(-1), ExtraKey::Digest(vec![9; 16])],
                vec![adapter()],
            ]
        );
    }

    #[test]
    fn keys_that_come_late_in_a_run_leave_empty_lists_before_them() {
        let span = Span { start: 2, tokens: 1, digest: [1; 16], kind: SpanKind::Embeddings };
        let scope = CacheScope::default().with_spans(vec![span]).expect("one");
        let mut events = Vec::new();
        push(&mut events, with_scope(1, None, 0, scope.clone()), 2);
        push(&mut events, with_scope(2, Some(1), 1, scope), 2);
        let [KvEvent::Stored(run)] = &events[..] else { panic!("one run of blocks: {events:?}") };
        assert_eq!(run.extra_keys, [vec![], vec![ExtraKey::Digest(vec![1; 16])]]);
    }

    #[test]
    fn each_group_has_an_endpoint_of_its_own() {
        for (text, third) in [
            ("tcp://127.0.0.1:5557", "tcp://127.0.0.1:5559"),
            ("tcp://127.0.0.1:0", "tcp://127.0.0.1:0"),
            ("ipc:///run/kv", "ipc:///run/kv.2"),
        ] {
            let endpoint: Endpoint = text.parse().expect("an endpoint");
            assert_eq!((nth(&endpoint, 0), nth(&endpoint, 2).to_string()), (endpoint, third.to_owned()));
        }
    }
}
