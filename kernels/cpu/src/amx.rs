//! AMX: eight tile registers of up to 16 rows × 64 bytes, and products of two of them added to a third.
//!
//! Rust's intrinsics for them are not stable, so they are written as assembly, here and in [`product`] and nowhere else.
//!
//! ```text
//! C (tiles 0 to 3)      rows × 16 sums of 32 bits
//! A (tiles 4, 5)        rows × `words` words of one row's activations: pairs of bfloat16, or four integers of 8 bits
//! B (tiles 6, 7)        `words` × 16 columns of weights, the same words
//! ```
//! Of a product each sum takes in 2 or 4 neighbours along K for each word: integers exactly; of bfloat16 the first of all pairs and
//! the second of all pairs are two sums in order, which are added to each other and then to C. Subnormals count as 0.
//!
//! Invariant: a value of [`Tiles`] exists only while its thread is configured for its shape, and at most one on a thread.
//! What a tile holds is alive only inside one `asm!` block: no compiled code knows these registers, and none is asked to keep one.

/// Sums of two blocks of rows into tiles 0 to 3, or zeros, if they are fresh: of a `Target<2>`. What follows is label 2.
macro_rules! two_blocks_in {
    () => {
        "mov {row}, [{target} + 16]
        cmp qword ptr [{target} + 24], 0
        je 3f
        tilezero tmm0
        tilezero tmm1
        tilezero tmm2
        tilezero tmm3
        jmp 2f
        3:
        mov {left}, [{target}]
        tileloadd tmm0, [{left} + {row}]
        tileloadd tmm1, [{left} + {row} + 64]
        mov {left}, [{target} + 8]
        tileloadd tmm2, [{left} + {row}]
        tileloadd tmm3, [{left} + {row} + 64]"
    };
}

/// And back.
macro_rules! two_blocks_out {
    () => {
        "mov {left}, [{target}]
        tilestored [{left} + {row}], tmm0
        tilestored [{left} + {row} + 64], tmm1
        mov {left}, [{target} + 8]
        tilestored [{left} + {row}], tmm2
        tilestored [{left} + {row} + 64], tmm3"
    };
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
mod emulator;
mod product;
mod short;

use std::arch::asm;
use std::marker::PhantomData;
use std::sync::OnceLock;

pub(crate) use product::{Ahead, Bf16Pairs, Bf16WidePairs, CodeQuadTiles, CodeQuads};
use product::{Product, Target};
pub(crate) use short::{Beside, STEP_UNITS};

/// Rows of a tile at most.
pub(crate) const TILE_ROWS: usize = 16;
/// Words of a row at most: of an activation's, and rows of a weight's tile.
pub(crate) const TILE_WORDS: usize = 16;
/// Columns of the sums of one call of [`Tiles::one_by_four`].
pub(crate) const SUM_COLUMNS: usize = 64;
/// Bytes of a row of a full tile.
const ROW: usize = 64;

/// The proof that the processor has AMX (tiles, BF16, INT8) and that the system lets this process use it, or that it is emulated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Amx(());

impl Amx {
    /// Asks the system, once per process: the state is large, so it is given only on request. All threads have it then.
    pub(crate) fn ask() -> Option<Self> {
        static IS_GRANTED: OnceLock<bool> = OnceLock::new();
        IS_GRANTED.get_or_init(|| has_amx() && is_permitted()).then_some(Self(()))
    }

    /// Tiles that the processor does not have, if this process emulates them.
    pub(crate) fn emulated() -> Option<Self> {
        #[cfg(all(target_os = "linux", target_env = "gnu"))]
        return emulator::is_on().then_some(Self(()));
        #[cfg(not(all(target_os = "linux", target_env = "gnu")))]
        None
    }

    /// Has them emulated from now on, slowly, where the system can. The processor has AVX-512 with BF16.
    pub(crate) fn emulate() {
        #[cfg(all(target_os = "linux", target_env = "gnu"))]
        emulator::turn_on();
    }

    /// Configures this thread until the value is dropped.
    ///
    /// # Safety
    /// No other [`Tiles`] of this thread is alive until then.
    pub(crate) unsafe fn tiles(self, shape: TileShape) -> Tiles {
        let mut tiles = Tiles { shape, thread: PhantomData };
        tiles.configure(shape);
        tiles
    }
}

/// What `ldtilecfg` reads.
#[repr(C)]
struct Config {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

const _: () = assert!(size_of::<Config>() == 64);

/// How much of the tiles is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TileShape {
    /// Of activations and sums.
    pub rows: usize,
    /// Along K.
    pub words: usize,
    /// Of weights and sums.
    columns: usize,
}

impl TileShape {
    /// All columns.
    pub(crate) fn new(rows: usize, words: usize) -> Self {
        Self { rows, words, columns: TILE_WORDS }
    }

    /// Whole tiles of activations times few columns: of [`Tiles::four_by_few`].
    pub(crate) fn of_columns(columns: usize) -> Self {
        Self { rows: TILE_ROWS, words: TILE_WORDS, columns }
    }
}

/// A thread that is configured. Not `Send`: the configuration is the thread's.
pub(crate) struct Tiles {
    shape: TileShape,
    thread: PhantomData<*const ()>,
}

impl Drop for Tiles {
    fn drop(&mut self) {
        // SAFETY: the thread is configured, by the module's invariant. Afterwards a switch of threads saves no tiles.
        unsafe { asm!("tilerelease", options(nostack, preserves_flags, nomem)) };
    }
}

/// Sums of a block of rows, or of two that lie one behind the other.
pub(crate) struct Sums<'a> {
    /// Begins at the first row's first column.
    pub sums: &'a mut [u32],
    /// From a row to the next.
    pub row: usize,
    /// Whether they begin at zero, whatever stands there; else products are added.
    pub are_fresh: bool,
}

#[cfg(test)]
impl<'a> Sums<'a> {
    /// Sums of 64 columns, row after row, to which products are added.
    pub(crate) fn added(sums: &'a mut [u32]) -> Self {
        Self { sums, row: SUM_COLUMNS, are_fresh: false }
    }
}

/// How the activations of a block lie, 64 bytes for each row and step.
#[derive(Clone, Copy)]
pub(crate) struct Lie {
    /// Bytes from a row to the next.
    pub row: usize,
    /// Bytes from a step to the next.
    pub step: usize,
}

impl Lie {
    /// All rows of a step, then those of the next: no two rows of a tile compete for one place in the first-level cache.
    pub(crate) fn by_steps(rows: usize) -> Self {
        Self { row: ROW, step: rows * ROW }
    }

    /// Bytes from the first to behind the last.
    fn bytes(self, rows: usize, steps: usize) -> usize {
        (rows - 1) * self.row + (steps - 1) * self.step + ROW
    }
}

impl Tiles {
    /// Another shape. What tiles held is gone, as it is between any two calls.
    #[inline(always)]
    pub(crate) fn reshape(&mut self, shape: TileShape) {
        if self.shape != shape {
            self.configure(shape);
        }
    }

    fn configure(&mut self, shape: TileShape) {
        let TileShape { rows, words, columns } = shape;
        assert!((1..=TILE_ROWS).contains(&rows) && [words, columns].iter().all(|some| (1..=TILE_WORDS).contains(some)));
        let mut config = Config { palette: 1, start_row: 0, reserved: [0; 14], row_bytes: [0; 16], rows: [0; 16] };
        for tile in 0..8 {
            let (tile_rows, tile_words) = match tile {
                0..4 => (rows, columns),
                4..6 => (rows, words),
                _ => (words, columns),
            };
            config.rows[tile] = tile_rows as u8;
            config.row_bytes[tile] = 4 * tile_words as u16;
        }
        // SAFETY: an `Amx` made this value, so the instruction is there and permitted; it reads 64 bytes, of a palette and sizes that exist.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const config, options(nostack, preserves_flags, readonly)) };
        self.shape = shape;
    }

    /// `sums[row][column] += Σ x[step][row] · weights[step][column]`, of 64 columns.
    ///
    /// `weights` begin at the first 32 columns, and `half` bytes further at the second.
    #[inline(always)]
    #[allow(clippy::too_many_arguments, reason = "where three matrices lie, and what comes next")]
    pub(crate) fn one_by_four<P: Product>(
        &self,
        to: Sums<'_>,
        x: &[u8],
        lie: Lie,
        weights: &[u8],
        half: usize,
        ahead: Ahead<2>,
        steps: usize,
    ) {
        let rows = self.shape.rows;
        assert!(steps > 0 && to.sums.len() >= (rows - 1) * to.row + SUM_COLUMNS && x.len() >= lie.bytes(rows, steps));
        assert!(weights.len() >= half + self.weight_bytes::<P>(steps));
        let halves = [weights.as_ptr(), weights[half..].as_ptr()];
        let sums = Target { blocks: [to.sums.as_mut_ptr()], row: 4 * to.row, are_fresh: usize::from(to.are_fresh) };
        // SAFETY: configured, by the module's invariant; the lengths are asserted.
        unsafe { P::one_by_four(sums, x.as_ptr(), lie, halves, ahead, steps) };
    }

    /// The same for two blocks of rows and 32 columns, with `x` of each.
    #[inline(always)]
    pub(crate) fn two_by_two<P: Product>(
        &self,
        to: Sums<'_>,
        x: [&[u8]; 2],
        lie: Lie,
        weights: &[u8],
        ahead: Ahead<1>,
        steps: usize,
    ) {
        let rows = self.shape.rows;
        assert!(steps > 0 && to.sums.len() >= (2 * rows - 1) * to.row + SUM_COLUMNS / 2);
        assert!(x.iter().all(|x| x.len() >= lie.bytes(rows, steps)) && weights.len() >= self.weight_bytes::<P>(steps));
        let blocks = [to.sums.as_mut_ptr(), to.sums[rows * to.row..].as_mut_ptr()];
        let sums = Target { blocks, row: 4 * to.row, are_fresh: usize::from(to.are_fresh) };
        // SAFETY: as above.
        unsafe { P::two_by_two(sums, x.map(<[u8]>::as_ptr), lie, weights.as_ptr(), ahead, steps) };
    }

    /// Sums of 16 columns that begin at zero, of one block of rows: `[row][16]`.
    #[inline(always)]
    pub(crate) fn one_by_one<P: Product>(
        &self,
        sums: &mut [[u32; TILE_WORDS]],
        x: &[u8],
        lie: Lie,
        weights: &[u8],
        steps: usize,
    ) {
        assert!(steps > 0 && sums.len() >= self.shape.rows && x.len() >= lie.bytes(self.shape.rows, steps));
        assert!(weights.len() + P::WEIGHT_TILE >= self.weight_bytes::<P>(steps));
        // SAFETY: configured, by the module's invariant; the lengths are asserted.
        unsafe { P::one_by_one(sums.as_mut_ptr().cast(), x.as_ptr(), lie, weights.as_ptr(), steps) };
    }

    /// Sums of 16 columns that begin at zero, of four blocks of rows: `[row][16]`, one block behind the other.
    #[inline(always)]
    pub(crate) fn four_by_one<P: Product>(
        &self,
        sums: &mut [u32],
        x: [&[u8]; 4],
        lie: Lie,
        weights: &[u8],
        steps: usize,
    ) {
        let (rows, block) = (self.shape.rows, self.shape.rows * ROW);
        assert!(steps > 0 && size_of_val(sums) >= 4 * block);
        assert!(x.iter().all(|x| x.len() >= lie.bytes(rows, steps)));
        assert!(weights.len() + P::WEIGHT_TILE >= self.weight_bytes::<P>(steps));
        // SAFETY: as above.
        unsafe {
            P::four_by_one(sums.as_mut_ptr(), block, x.map(<[u8]>::as_ptr), lie, weights.as_ptr(), steps);
        }
    }

    /// Sums of the few columns that this thread is configured for, which begin at zero, of four whole blocks of rows: `[4 · 16][column]`.
    /// `weights`: `[step][word][column]`, whatever the product's lie elsewhere.
    #[inline(always)]
    pub(crate) fn four_by_few<P: Product>(
        &self,
        sums: &mut [u32],
        x: [&[u8]; 4],
        lie: Lie,
        weights: &[u32],
        steps: usize,
    ) {
        let TileShape { rows, words, columns } = self.shape;
        assert!(rows == TILE_ROWS && words == TILE_WORDS);
        assert!(steps > 0 && sums.len() >= 4 * rows * columns && weights.len() >= steps * words * columns);
        assert!(x.iter().all(|x| x.len() >= lie.bytes(rows, steps)));
        // SAFETY: as above; a row of weights or sums has `columns` words.
        unsafe {
            P::four_by_few(sums.as_mut_ptr(), x.map(<[u8]>::as_ptr), lie, weights.as_ptr().cast(), 4 * columns, steps);
        }
    }

    /// Nothing but products, `4 · rounds` of them: how fast this thread could be if no tile had to be loaded.
    pub(crate) fn in_registers<P: Product>(&self, rounds: usize) {
        assert!(rounds > 0);
        // SAFETY: configured, by the module's invariant.
        unsafe { P::in_registers(rounds) };
    }

    /// From the first byte of two tiles side by side to behind their last.
    fn weight_bytes<P: Product>(&self, steps: usize) -> usize {
        assert!(self.shape.columns == TILE_WORDS, "a shape of few columns is for `four_by_few` alone");
        (steps - 1) * P::WEIGHT_STEP + P::WEIGHT_TILE + (self.shape.words - 1) * P::WEIGHT_ROW + ROW
    }
}

/// Whether `CPUID` names tiles, BF16 and INT8.
fn has_amx() -> bool {
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    const BF16: u32 = 1 << 22;
    const TILE: u32 = 1 << 24;
    const INT8: u32 = 1 << 25;
    let all = BF16 | TILE | INT8;
    // Safe functions in newer compilers than the oldest that we build with.
    #[allow(unused_unsafe, reason = "see above")]
    // SAFETY: every x86-64 processor has the instruction; the leaf is there if the highest one is no lower.
    unsafe {
        __cpuid(0).eax >= 7 && __cpuid_count(7, 0).edx & all == all
    }
}

/// Linux gives the state to a process that asks (`arch_prctl`), if it can save it; it refuses where a thread's stack for signals
/// is too small for it.
#[cfg(target_os = "linux")]
fn is_permitted() -> bool {
    const ARCH_PRCTL: i64 = 158;
    const ARCH_REQ_XCOMP_PERM: u64 = 0x1023;
    const XTILEDATA: u64 = 18;
    let result: i64;
    // SAFETY: a system call with two numbers, which touches none of our memory; it changes these three registers.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") ARCH_PRCTL => result,
            in("rdi") ARCH_REQ_XCOMP_PERM,
            in("rsi") XTILEDATA,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    result == 0
}

#[cfg(not(target_os = "linux"))]
fn is_permitted() -> bool {
    false
}

#[cfg(test)]
mod tests;
