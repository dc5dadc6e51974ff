//! Numbers from a seed (SplitMix64). The same in every run.

use std::ops::RangeInclusive;

pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        super::model::mix(self.0, 0)
    }

    pub(crate) fn within(&mut self, range: RangeInclusive<u32>) -> u32 {
        let width = u64::from(range.end() - range.start()) + 1;
        range.start() + (self.next() % width) as u32
    }

    /// True once in `times`.
    pub(crate) fn once_in(&mut self, times: u32) -> bool {
        self.within(1..=times) == 1
    }

    pub(crate) fn pick<'a, T>(&mut self, items: &'a [T]) -> Option<&'a T> {
        let last = u32::try_from(items.len()).expect("short lists").checked_sub(1)?;
        items.get(self.within(0..=last) as usize)
    }

    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.within(0..=last as u32) as usize);
        }
    }
}
