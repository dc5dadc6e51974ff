//! What the workers of these tests compute: KV blocks hold plain tokens, and a draw is a function of a request's whole
//! history, read back through its block table. A wrong block, a lost copy or a replay that differs draws other tokens.

use std::array::from_fn;

use pelton_frame::{Admit, Append, Copy, FrameHeader, HostMemory, Load, Memory, ROW_SAMPLES, Region, Row, Save};

pub(crate) const VOCAB: u32 = 1000;
pub(crate) const BLOCK: u32 = 4;
pub(crate) const BLOCK_BYTES: usize = 4 * BLOCK as usize;

/// The token that follows `history`.
pub(crate) fn drawn(history: impl IntoIterator<Item = u32>) -> u32 {
    let mix = |hash: u64, token: u32| (hash ^ u64::from(token)).wrapping_mul(0x0100_0000_01b3).rotate_left(23);
    let hash = history.into_iter().fold(0xcbf2_9ce4_8422_2325, mix);
    u32::try_from((hash >> 20) % u64::from(VOCAB)).expect("below the vocabulary's size")
}

/// The first `count` tokens of an answer that nothing disturbs.
pub(crate) fn answer(prompt: &[u32], count: u32) -> Vec<u32> {
    let mut history = prompt.to_vec();
    for _ in 0..count {
        history.push(drawn(history.iter().copied()));
    }
    history.split_off(prompt.len())
}

/// The vector of so many tokens.
pub(crate) fn vector(history: impl Iterator<Item = u32> + Clone) -> [f32; 2] {
    [history.clone().count() as f32, drawn(history) as f32]
}

/// What a row computes and draws.
pub(crate) struct Drawn {
    /// The row's own tokens, the one that was not known included.
    pub(crate) tokens: Vec<u32>,
    /// Where the row begins.
    pub(crate) start: u32,
    pub(crate) token: u32,
    /// Of the row's own tokens, and of all that its KV holds.
    pub(crate) vectors: [[f32; 2]; 2],
}

/// One life's KV and slots.
pub(crate) struct Model {
    kv: Vec<[u32; BLOCK as usize]>,
    slots: Vec<Slot>,
}

#[derive(Default, Clone)]
struct Slot {
    table: Vec<u32>,
    drawn: u32,
}

impl Model {
    pub(crate) fn new(blocks: u32, slots: u32) -> Self {
        Self { kv: vec![[0; BLOCK as usize]; blocks as usize], slots: vec![Slot::default(); slots as usize] }
    }

    /// Applies a plan, in the order of its parts, and draws for each row.
    pub(crate) fn compute(
        &mut self,
        memory: &Memory,
        frame: u32,
        header: &FrameHeader,
        host: Option<&HostMemory>,
    ) -> Vec<Drawn> {
        let records = |region, count: u32, words: usize| {
            let mut read = Vec::new();
            memory.read(frame, region, count as usize * words, &mut read);
            read.chunks_exact(words).map(<[u32]>::to_vec).collect::<Vec<_>>()
        };
        for admit in records(Region::Admits, header.admits, Admit::WORDS) {
            self.slots[admit[0] as usize] = Slot::default();
        }
        for append in records(Region::Appends, header.appends, Append::WORDS) {
            let [slot, kind, at, block]: [u32; 4] = from_fn(|field| append[field]);
            let table = &mut self.slots[slot as usize].table;
            assert_eq!((kind, at as usize), (0, table.len()), "full attention has no holes");
            table.push(block);
        }
        for save in records(Region::Saves, header.saves, Save::WORDS) {
            let tokens = self.kv[save[0] as usize];
            host.expect("bounds were checked").write(save[1], bytemuck::cast_slice(&tokens));
        }
        for load in records(Region::Loads, header.loads, Load::WORDS) {
            let mut bytes = Vec::new();
            host.expect("bounds were checked").read(load[0], &mut bytes);
            self.kv[load[1] as usize] =
                from_fn(|at| u32::from_le_bytes(bytes[4 * at..4 * at + 4].try_into().expect("four of them")));
        }
        for copy in records(Region::Copies, header.copies, Copy::WORDS) {
            let [from, to, tokens]: [u32; 3] = from_fn(|field| copy[field]);
            let source = self.kv[from as usize];
            self.kv[to as usize][..tokens as usize].copy_from_slice(&source[..tokens as usize]);
        }
        let tokens = records(Region::Tokens, header.tokens, 1).concat();
        records(Region::Rows, header.rows, Row::WORDS).iter().map(|row| self.row(row, &tokens)).collect()
    }

    fn row(&mut self, row: &[u32], tokens: &[u32]) -> Drawn {
        let [slot, start, count, known, offset, flags]: [u32; 6] = from_fn(|field| row[field]);
        let slot = &mut self.slots[slot as usize];
        let mut tokens = tokens[offset as usize..][..known as usize].to_vec();
        if known < count {
            tokens.push(slot.drawn);
        }
        let place = |table: &[u32], at: u32| (table[(at / BLOCK) as usize] as usize, (at % BLOCK) as usize);
        for (at, &token) in (start..).zip(&tokens) {
            let (block, offset) = place(&slot.table, at);
            self.kv[block][offset] = token;
        }
        let history = (0..start + count).map(|at| place(&slot.table, at)).map(|(block, offset)| self.kv[block][offset]);
        let token = drawn(history.clone());
        let vectors = [vector(tokens.iter().copied()), vector(history)];
        if flags & ROW_SAMPLES != 0 {
            slot.drawn = token;
        }
        Drawn { tokens, start, token, vectors }
    }
}
