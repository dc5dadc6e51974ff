//! The shelf against a plain map, and the order in which blocks are given up.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::keys::KeyMaker;

const BLOCK_SIZE: usize = 2;

/// The blocks of texts of a few tokens, by the text that ends with them: each has the one before it as its parent.
fn label(text: &[TokenId]) -> (Label, Vec<TokenId>) {
    let maker = KeyMaker::new([1, 2], BLOCK_SIZE);
    let (mut parent, mut key) = (maker.root(None), maker.root(None));
    for token in text {
        (parent, key) = (key, maker.child(key, &[*token; BLOCK_SIZE]));
    }
    let before = u32::try_from(text.len() - 1).expect("short");
    (Label { key, parent, scope: None, before, is_told: true }, vec![*text.last().expect("not empty"); BLOCK_SIZE])
}

fn put(shelf: &mut Shelf, text: &[TokenId], cost: u64) -> Reserved {
    let (label, tokens) = label(text);
    let reserved = shelf.offer(label, &tokens, cost);
    if let Reserved::At(at, _) = &reserved {
        let at = *at;
        assert!(shelf.arrive(at));
    }
    shelf.check(std::iter::empty());
    reserved
}

fn has(shelf: &Shelf, text: &[TokenId]) -> bool {
    shelf.find(label(text).0.key).is_some()
}

#[test]
fn a_leaf_is_given_up_before_its_root_and_a_block_is_not_given_up_for_its_child() {
    let mut shelf = Shelf::new(3, 2);
    for text in [&[1][..], &[1, 2], &[1, 2, 3]] {
        put(&mut shelf, text, 0);
    }
    assert_eq!(put(&mut shelf, &[1, 2, 3, 4], 0), Reserved::Dearer, "all there is comes before it");
    put(&mut shelf, &[7], 0);
    assert_eq!([has(&shelf, &[1]), has(&shelf, &[1, 2]), has(&shelf, &[1, 2, 3])], [true, true, false]);
}

#[test]
fn what_is_dear_stays_longer_than_what_is_cheap_but_not_for_ever() {
    let mut shelf = Shelf::new(2, 2);
    put(&mut shelf, &[1], 100);
    put(&mut shelf, &[2], 10);
    put(&mut shelf, &[3], 10);
    assert_eq!([has(&shelf, &[1]), has(&shelf, &[2]), has(&shelf, &[3])], [true, false, true]);
    let mut shelf = Shelf::new(1, 2);
    put(&mut shelf, &[1], 100);
    assert_eq!(put(&mut shelf, &[2], 10), Reserved::Dearer);
    let came = (3..30).position(|token| put(&mut shelf, &[token], 10) != Reserved::Dearer);
    assert_eq!(came, Some(8), "ten that cost a tenth are worth as much");
    assert!(matches!(shelf.demand(label(&[99]).0, &[99, 99], 0), Reserved::At(..)), "who is waited for comes");
}

#[test]
fn what_was_given_up_while_it_was_read_is_blank_when_it_was_read() {
    let mut shelf = Shelf::new(1, 2);
    put(&mut shelf, &[1], 0);
    shelf.hold(0);
    shelf.forget_all();
    shelf.check([0].into_iter());
    assert_eq!((has(&shelf, &[1]), put_held(&mut shelf)), (false, Reserved::NoneIdle));
    shelf.give(0);
    assert!(matches!(put(&mut shelf, &[2], 0), Reserved::At(0, None)));
}

fn put_held(shelf: &mut Shelf) -> Reserved {
    let (label, tokens) = label(&[5]);
    shelf.offer(label, &tokens, 0)
}

#[test]
fn a_place_takes_80_bytes_beside_its_tokens_and_the_maps() {
    assert_eq!(size_of::<Option<Entry>>(), 80);
}

#[derive(Debug, Clone)]
enum Act {
    Put(Vec<TokenId>),
    Hold(Vec<TokenId>),
    Give(Vec<TokenId>),
    Touch(Vec<TokenId>),
}

fn act() -> impl Strategy<Value = Act> {
    let text = || prop::collection::vec(0u32..2, 1..5);
    prop_oneof![
        3 => text().prop_map(Act::Put),
        1 => text().prop_map(Act::Hold),
        1 => text().prop_map(Act::Give),
        1 => text().prop_map(Act::Touch),
    ]
}

proptest! {
    /// The oracle is a map from texts to their last use and their holders. All cost the same.
    #[test]
    fn the_shelf_does_what_a_plain_map_does(acts in prop::collection::vec(act(), 0..120)) {
        let mut shelf = Shelf::new(5, 2);
        let mut plain: BTreeMap<Vec<TokenId>, (usize, u32)> = BTreeMap::new();
        for (now, act) in acts.into_iter().enumerate() {
            match act {
                Act::Put(text) if !plain.contains_key(&text) => {
                    let has_child = |of: &[TokenId]| plain.keys().any(|other| other[..other.len() - 1] == *of);
                    let may_go = |(other, &(used, holders)): (&Vec<TokenId>, &(usize, u32))| {
                        let is_parent = text[..text.len() - 1] == other[..];
                        (holders == 0 && !has_child(other) && !is_parent).then(|| (used, other.clone()))
                    };
                    let victim = plain.iter().filter_map(may_go).min();
                    let (label, tokens) = label(&text);
                    let reserved = shelf.offer(label.clone(), &tokens, 3);
                    if plain.len() < 5 {
                        prop_assert!(matches!(reserved, Reserved::At(_, None)));
                    } else if let Some((_, victim)) = &victim {
                        let key = self::label(victim).0.key;
                        prop_assert!(matches!(&reserved, Reserved::At(_, Some(given_up)) if given_up.key == key));
                        plain.remove(victim);
                    } else {
                        prop_assert!(!matches!(reserved, Reserved::At(..)));
                    }
                    if let Reserved::At(at, _) = reserved {
                        prop_assert!(shelf.find(label.key).is_none(), "it is on its way");
                        shelf.arrive(at);
                        plain.insert(text, (now, 0));
                    }
                }
                Act::Hold(text) => {
                    if let Some((_, holders)) = plain.get_mut(&text) {
                        *holders += 1;
                        shelf.hold(shelf.find(label(&text).0.key).expect("as in the map"));
                    }
                }
                Act::Give(text) => {
                    if let Some((_, holders)) = plain.get_mut(&text) && *holders > 0 {
                        *holders -= 1;
                        shelf.give(shelf.find(label(&text).0.key).expect("as in the map"));
                    }
                }
                Act::Put(text) | Act::Touch(text) => {
                    if let Some((used, _)) = plain.get_mut(&text) {
                        *used = now;
                    }
                    shelf.touch(label(&text).0.key, 3);
                }
            }
            let held = plain.iter().flat_map(|(text, &(_, holders))| {
                let at = shelf.find(label(text).0.key).expect("as in the map");
                std::iter::repeat_n(at, holders as usize)
            });
            shelf.check(held);
            prop_assert_eq!(shelf.findable(), plain.len());
        }
    }
}
