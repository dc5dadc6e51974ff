//! Where everything lies: capacities in, offsets out. A pure function, computed by both sides and compared.

use std::{fmt, ops::Range};

use crate::{
    Admit, Append, Bias, Copy, FrameHeader, LayoutError, Load, ResultHeader, Row, Save,
    checksum::{Checksum, halves},
};

/// Bytes before the first frame.
pub const PREAMBLE_BYTES: usize = 4096;
/// Regions begin on cache lines.
const LINE: usize = 64;
/// The most that one memory may take: foreign capacities cannot make us map more.
const BYTES_MAX: usize = 1 << 30;

/// How much one step may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capacities {
    /// Steps in flight at most.
    pub frames: u32,
    /// Slots; rows of a step and their drafts together.
    pub slots: u32,
    /// Tokens of all rows.
    pub tokens: u32,
    /// Block appends.
    pub appends: u32,
    /// Block copies.
    pub copies: u32,
    /// Biases of all admits.
    pub biases: u32,
    /// Suppressed ids of all admits, and those that are told.
    pub suppressed: u32,
    /// History tokens of all admits.
    pub history: u32,
    /// Likeliest tokens that can be reported per draw.
    pub top_logprobs: u32,
    /// Blocks saved to host memory.
    pub saves: u32,
    /// Blocks loaded from host memory.
    pub loads: u32,
    /// Dimensions of a pooled vector; 0: the model draws tokens and pools nothing.
    pub pooled_width: u32,
    /// Prompt tokens whose log-probabilities one step can tell, beside what it draws: bounds the logits that it makes.
    pub scores: u32,
    /// Prompt tokens of one step that can be given as embeddings; 0: none.
    pub embeds: u32,
    /// Dimensions of an embedding; 0 exactly if there are none.
    pub embed_width: u32,
}

impl Capacities {
    /// In the order of the preamble and of the wire.
    pub(crate) const fn words(&self) -> [u32; 15] {
        [
            self.frames,
            self.slots,
            self.tokens,
            self.appends,
            self.copies,
            self.biases,
            self.suppressed,
            self.history,
            self.top_logprobs,
            self.saves,
            self.loads,
            self.pooled_width,
            self.scores,
            self.embeds,
            self.embed_width,
        ]
    }
}

/// An array of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub enum Region {
    /// `FrameHeader`.
    Header,
    /// Slots whose requests have left.
    Drops,
    /// `Admit`.
    Admits,
    /// `Bias`.
    Biases,
    /// Token ids.
    Suppressed,
    /// Token ids.
    History,
    /// `Append`.
    Appends,
    /// `Save`.
    Saves,
    /// `Load`.
    Loads,
    /// `Copy`.
    Copies,
    /// `Row`.
    Rows,
    /// Token ids.
    Tokens,
    /// What stands in the place of tokens' rows of the model's table (f32).
    Embeds,
    /// `ResultHeader`: the result part begins.
    ResultHeader,
    /// The tokens drawn, or the ranks of those that were scored, row by row: see `ResultHeader::draws`.
    Sampled,
    /// `RESULT_*` of each.
    Flags,
    /// Log-probability of the drawn token, or of the one that was scored (f32).
    ChosenLogprob,
    /// Likeliest tokens in the place of each.
    TopIds,
    /// Their log-probabilities (f32).
    TopLogprobs,
    /// The vector of each row that pools (f32).
    Pooled,
}

impl Region {
    /// All, in the order in which they lie.
    pub const ALL: [Self; 20] = [
        Self::Header,
        Self::Drops,
        Self::Admits,
        Self::Biases,
        Self::Suppressed,
        Self::History,
        Self::Appends,
        Self::Saves,
        Self::Loads,
        Self::Copies,
        Self::Rows,
        Self::Tokens,
        Self::Embeds,
        Self::ResultHeader,
        Self::Sampled,
        Self::Flags,
        Self::ChosenLogprob,
        Self::TopIds,
        Self::TopLogprobs,
        Self::Pooled,
    ];

    /// As Python calls it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Header => "header",
            Self::Drops => "drops",
            Self::Admits => "admits",
            Self::Biases => "biases",
            Self::Suppressed => "suppressed",
            Self::History => "history",
            Self::Appends => "appends",
            Self::Saves => "saves",
            Self::Loads => "loads",
            Self::Copies => "copies",
            Self::Rows => "rows",
            Self::Tokens => "tokens",
            Self::Embeds => "embeds",
            Self::ResultHeader => "result_header",
            Self::Sampled => "sampled",
            Self::Flags => "flags",
            Self::ChosenLogprob => "chosen_logprob",
            Self::TopIds => "top_ids",
            Self::TopLogprobs => "top_logprobs",
            Self::Pooled => "pooled",
        }
    }
}

impl fmt::Display for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Where a region lies in its frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Bytes from the frame's begin.
    pub offset: usize,
    /// Words of one record.
    pub words: usize,
    /// Records it holds.
    pub capacity: u32,
}

impl Place {
    /// Bytes, without what rounds it up to a line.
    pub const fn bytes(&self) -> usize {
        4 * self.words * self.capacity as usize
    }
}

/// Offsets of all regions. Made by `Layout::new`, so it always fits its bounds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    capacities: Capacities,
    places: [Place; 20], // by Region
    frame_stride: usize,
}

impl Layout {
    /// Places all regions, one after the other, each on a line of its own.
    pub fn new(capacities: Capacities) -> Result<Self, LayoutError> {
        check(&capacities)?;
        let Capacities {
            slots,
            tokens,
            appends,
            copies,
            biases,
            suppressed,
            history,
            top_logprobs,
            saves,
            loads,
            pooled_width,
            scores,
            embeds,
            embed_width,
            ..
        } = capacities;
        let results = slots + scores;
        let shape = |region| match region {
            Region::Header => (FrameHeader::WORDS, 1),
            Region::Drops => (1, slots),
            Region::Admits => (Admit::WORDS, slots),
            Region::Biases => (Bias::WORDS, biases),
            Region::Suppressed => (1, suppressed),
            Region::History => (1, history),
            Region::Appends => (Append::WORDS, appends),
            Region::Saves => (Save::WORDS, saves),
            Region::Loads => (Load::WORDS, loads),
            Region::Copies => (Copy::WORDS, copies),
            Region::Rows => (Row::WORDS, slots),
            Region::Tokens => (1, tokens),
            Region::Embeds => (embed_width as usize, embeds),
            Region::ResultHeader => (ResultHeader::WORDS, 1),
            Region::Sampled | Region::Flags | Region::ChosenLogprob => (1, results),
            Region::TopIds | Region::TopLogprobs => (top_logprobs as usize, results),
            Region::Pooled => (pooled_width as usize, results),
        };
        let mut end = 0;
        let places = Region::ALL.map(|region| {
            let (words, capacity) = shape(region);
            let place = Place { offset: end, words, capacity };
            end = (end + place.bytes()).next_multiple_of(LINE);
            place
        });
        let layout = Self { capacities, places, frame_stride: end };
        if layout.total_bytes() > BYTES_MAX {
            return Err(LayoutError::TooLarge { bytes: layout.total_bytes(), most: BYTES_MAX });
        }
        Ok(layout)
    }

    /// What it was made from.
    pub const fn capacities(&self) -> &Capacities {
        &self.capacities
    }

    /// Where a region lies.
    pub const fn place(&self, region: Region) -> Place {
        self.places[region as usize]
    }

    /// Bytes from one frame to the next.
    pub const fn frame_stride(&self) -> usize {
        self.frame_stride
    }

    /// Bytes of the plan part, within a frame.
    pub const fn plan_range(&self) -> Range<usize> {
        0..self.place(Region::ResultHeader).offset
    }

    /// Bytes of the result part, within a frame.
    pub const fn result_range(&self) -> Range<usize> {
        self.place(Region::ResultHeader).offset..self.frame_stride
    }

    /// Bytes of the whole memory.
    pub const fn total_bytes(&self) -> usize {
        PREAMBLE_BYTES + self.capacities.frames as usize * self.frame_stride
    }

    /// Equal on both sides exactly when they place everything alike.
    pub fn checksum(&self) -> u64 {
        let mut sum = Checksum::new().absorb(&self.capacities.words());
        for place in &self.places {
            let (low, high) = halves(place.offset as u64);
            sum = sum.pair(low, high).pair(place.words as u32, place.capacity);
        }
        sum.absorb(&[self.frame_stride as u32]).finish()
    }
}

fn check(capacities: &Capacities) -> Result<(), LayoutError> {
    // Two frames at least, since one step is queued while another runs. The upper bounds are far above any real step;
    // they keep sums of sizes from overflowing, whatever a peer claims.
    let bounds: [(&'static str, u32, u32); 15] = [
        ("frames", 2, 64),
        ("slots", 1, 1 << 16),
        ("tokens", 1, 1 << 20),
        ("appends", 0, 1 << 22),
        ("copies", 0, 1 << 20),
        ("biases", 0, 1 << 22),
        ("suppressed", 0, 1 << 22),
        ("history", 0, 1 << 26),
        ("top_logprobs", 0, 128),
        ("saves", 0, 1 << 20),
        ("loads", 0, 1 << 20),
        ("pooled_width", 0, 1 << 16),
        ("scores", 0, 1 << 20),
        ("embeds", 0, 1 << 20),
        // An embedding of no numbers is none.
        ("embed_width", capacities.embeds.min(1), capacities.embeds.min(1) << 16),
    ];
    for ((name, least, most), got) in bounds.into_iter().zip(capacities.words()) {
        if !(least..=most).contains(&got) {
            return Err(LayoutError::Capacity { name, got, least, most });
        }
    }
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    pub(crate) fn small() -> Capacities {
        Capacities {
            frames: 4,
            slots: 8,
            tokens: 64,
            appends: 16,
            copies: 4,
            biases: 8,
            suppressed: 8,
            history: 32,
            top_logprobs: 3,
            saves: 4,
            loads: 4,
            pooled_width: 5,
            scores: 6,
            embeds: 7,
            embed_width: 3,
        }
    }

    prop_compose! {
        fn any_capacities()(
            frames in 2..9u32, slots in 1..3000u32, tokens in 1..20_000u32, appends in 0..5000u32, copies in 0..500u32,
            biases in 0..3000u32, suppressed in 0..3000u32, history in 0..300_000u32, top_logprobs in 0..21u32,
            saves in 0..500u32, loads in 0..500u32, pooled_width in 0..1025u32, scores in 0..500u32,
            (embeds, embed_width) in prop_oneof![Just((0, 0)), (1..300u32, 1..300u32)],
        ) -> Capacities {
            Capacities {
                frames, slots, tokens, appends, copies, biases, suppressed, history, top_logprobs, saves, loads,
                pooled_width, scores, embeds, embed_width,
            }
        }
    }

    proptest! {
        #[test]
        fn regions_are_aligned_apart_and_inside(capacities in any_capacities()) {
            let layout = Layout::new(capacities).unwrap();
            let mut end = 0;
            for region in Region::ALL {
                let place = layout.place(region);
                prop_assert_eq!(place.offset % 64, 0);
                prop_assert!(place.offset >= end, "{} overlaps the region before it", region);
                end = place.offset + place.bytes();
            }
            prop_assert!(end <= layout.frame_stride());
            prop_assert_eq!(layout.frame_stride() % 64, 0);
            prop_assert_eq!(layout.plan_range().end, layout.result_range().start);
            prop_assert_eq!(layout.result_range().end, layout.frame_stride());
            prop_assert_eq!(layout.total_bytes(), PREAMBLE_BYTES + capacities.frames as usize * layout.frame_stride());
        }

        #[test]
        fn the_checksum_tells_two_layouts_apart(one in any_capacities(), other in any_capacities()) {
            let (left, right) = (Layout::new(one).unwrap(), Layout::new(other).unwrap());
            prop_assert_eq!(left.checksum() == right.checksum(), one == other);
        }
    }

    #[test]
    fn capacities_out_of_bounds_are_refused_by_name() {
        let refused = |change: fn(&mut Capacities)| {
            let mut capacities = small();
            change(&mut capacities);
            Layout::new(capacities).unwrap_err().to_string()
        };
        assert!(refused(|c| c.frames = 1).contains("`frames` is 1"));
        assert!(refused(|c| c.slots = 0).contains("`slots` is 0"));
        assert!(refused(|c| c.tokens = u32::MAX).contains("`tokens`"));
        assert!(refused(|c| c.top_logprobs = 129).contains("`top_logprobs`"));
        assert!(refused(|c| c.pooled_width = (1 << 16) + 1).contains("`pooled_width` is 65537"));
        assert!(refused(|c| c.embed_width = (1 << 16) + 1).contains("`embed_width` is 65537"));
        assert!(refused(|c| c.embed_width = 0).contains("`embed_width` is 0"));
        assert!(refused(|c| c.embeds = 0).contains("`embed_width` is 3"));
        assert!(refused(|c| (c.slots, c.pooled_width) = (4096, 1 << 16)).contains("bytes"));
        assert!(refused(|c| (c.frames, c.history) = (64, 1 << 26)).contains("bytes"));
    }
}
