//! Which instruction sets this processor has. An [`Isa`] is made only by detection, so holding one is the proof that it runs here.

#[cfg(target_arch = "x86_64")]
use crate::amx::Amx;
use crate::simd::{self, Kernel};

/// One of the instruction-set classes, known to be there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Isa(Class);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    Portable,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
    #[cfg(target_arch = "x86_64")]
    Avx512Vnni,
    #[cfg(target_arch = "x86_64")]
    Avx512Bf16,
    /// The one above, with tiles for products of matrices.
    #[cfg(target_arch = "x86_64")]
    Amx(Amx),
}

impl Isa {
    /// All that run here, the best first; one whose tiles are emulated last, as it is the slowest.
    pub fn available() -> Vec<Self> {
        let mut found = vec![Self(Class::Portable)];
        #[cfg(target_arch = "x86_64")]
        {
            let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
            let avx512 = avx2
                && is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl");
            let vnni = avx512 && is_x86_feature_detected!("avx512vnni");
            // No processor has BF16 without VNNI, which came first.
            let bf16 = vnni && is_x86_feature_detected!("avx512bf16");
            found.extend(avx2.then_some(Self(Class::Avx2)));
            found.extend(avx512.then_some(Self(Class::Avx512)));
            found.extend(vnni.then_some(Self(Class::Avx512Vnni)));
            found.extend(bf16.then_some(Self(Class::Avx512Bf16)));
            if bf16 && pairs_are_slow() {
                let last = found.len() - 1;
                found.swap(last - 1, last);
            }
            if cfg!(test) {
                Self::emulate_tiles();
            }
            match bf16.then(Amx::ask).flatten() {
                Some(amx) => found.push(Self(Class::Amx(amx))),
                None => found.splice(0..0, Amx::emulated().map(|amx| Self(Class::Amx(amx)))).for_each(drop),
            }
        }
        found.reverse();
        found
    }

    /// Has tiles emulated from now on where all is there that they come with: for tests, whose class of tiles is
    /// [available](Self::available) then.
    pub fn emulate_tiles() {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx512bf16") && Amx::ask().is_none() {
            Amx::emulate();
        }
    }

    /// The fastest that runs here.
    pub fn best() -> Self {
        Self::available()[0]
    }

    /// The one of that name, if it runs here.
    pub fn named(name: &str) -> Option<Self> {
        Self::available().into_iter().find(|isa| isa.name() == name)
    }

    /// The name that a numerics id carries.
    pub fn name(self) -> &'static str {
        match self.0 {
            Class::Portable => "portable",
            #[cfg(target_arch = "x86_64")]
            Class::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Class::Avx512 => "avx512",
            #[cfg(target_arch = "x86_64")]
            Class::Avx512Vnni => "avx512vnni",
            #[cfg(target_arch = "x86_64")]
            Class::Avx512Bf16 => "avx512bf16",
            #[cfg(target_arch = "x86_64")]
            Class::Amx(_) => "amx",
        }
    }

    /// Whether the class multiplies matrices in tiles.
    pub(crate) fn has_tiles(self) -> bool {
        self.name() == "amx"
    }

    /// Whether memory gives more to who reads three pages in turn than one after the other (docs/decisions/short-weights.md).
    pub(crate) fn reads_pages_in_turn(self) -> bool {
        self.is_of_intels_cores()
    }

    /// Whether the processor foresees one linear stream better by itself than if it is asked for what lies further on. With one thread and one
    /// row, weights of 4 bits took 0.8 of the time where an Emerald Rapids without AMX was asked, `-a16` 0.7; Zen 4 gave 20 to 27 GB/s then and
    /// 28 by itself. Others have not been measured.
    pub(crate) fn foresees(self) -> bool {
        !self.is_of_intels_cores()
    }

    /// With tiles, and the class that their processors have without them.
    fn is_of_intels_cores(self) -> bool {
        matches!(self.name(), "avx512vnni" | "amx")
    }

    /// The tiles, if the class has them.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn amx(self) -> Option<Amx> {
        match self.0 {
            Class::Amx(amx) => Some(amx),
            _ => None,
        }
    }

    /// Runs the kernel as compiled for this class.
    #[inline]
    pub(crate) fn run<K: Kernel>(self, kernel: K) -> K::Output {
        match self.0 {
            Class::Portable => simd::run_portable(kernel),
            // SAFETY: an `Isa` of this class is made only by `available`, after the processor said that it has the features.
            #[cfg(target_arch = "x86_64")]
            Class::Avx2 => unsafe { simd::run_avx2(kernel) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Class::Avx512 => unsafe { simd::run_avx512(kernel) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Class::Avx512Vnni => unsafe { simd::run_avx512vnni(kernel) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Class::Avx512Bf16 | Class::Amx(_) => unsafe { simd::run_avx512bf16(kernel) },
        }
    }
}

/// Whether multiplying floats is faster than multiplying pairs of bfloat16. On Intel's processors a core begins two vectors of 16 float
/// products in a cycle, and one of 32 products by pairs in two; on AMD's pairs are twice as fast (docs/decisions/float-products.md).
/// Told by the maker's name: what was measured would not be the same at each start, and results depend on it.
#[cfg(target_arch = "x86_64")]
fn pairs_are_slow() -> bool {
    // A safe function in newer compilers than the oldest that we build with.
    #[allow(unused_unsafe, reason = "see above")]
    // SAFETY: every x86-64 processor has the instruction, and this leaf.
    let found = unsafe { std::arch::x86_64::__cpuid(0) };
    let name = [found.ebx, found.edx, found.ecx].map(u32::to_le_bytes);
    name.as_flattened() == b"GenuineIntel"
}
