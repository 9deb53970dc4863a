//! `worker_cpu_affinity`: the processors on which each loop runs.

use std::fmt;

use rustix::thread::CpuSet;
use weir_conf::{Directive, Error};

/// Masks of processors, or one processor for each loop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Affinity {
    /// A mask for each loop, as a list of processors. The last mask is that of all further loops.
    Masks(Vec<Vec<usize>>),
    /// One of these processors for each loop, in turn.
    Auto(Vec<usize>),
}

impl Affinity {
    /// Reads the directive. `auto` without a mask chooses from `allowed`.
    pub(super) fn read(d: &Directive, allowed: &[usize]) -> Result<Affinity, Error> {
        let auto = d.arg(0).is_some_and(|word| word.is("auto"));
        if auto && d.args.len() > 2 {
            let text = "invalid number of arguments in \"worker_cpu_affinity\" directive";
            return Err(d.error(text));
        }
        let masks = d.args.iter().skip(usize::from(auto));
        let masks: Result<Vec<_>, _> =
            masks.map(|w| mask(&w.bytes).map_err(|e| d.error_at(w, e.to_string()))).collect();
        let mut masks = masks?;
        if auto {
            return Ok(Affinity::Auto(masks.pop().unwrap_or_else(|| allowed.to_vec())));
        }
        Ok(Affinity::Masks(masks))
    }

    /// The processors of loop `index` of the whole server. None if it may run anywhere.
    pub fn of(&self, index: usize) -> Option<CpuSet> {
        let chosen = match self {
            Affinity::Masks(masks) => masks.get(index).or(masks.last())?.clone(),
            Affinity::Auto(cpus) if cpus.is_empty() => return None,
            Affinity::Auto(cpus) => vec![*cpus.get(index % cpus.len())?],
        };
        let mut set = CpuSet::new();
        chosen.into_iter().for_each(|cpu| set.set(cpu));
        Some(set)
    }

    /// Warnings about the directive, for this many loops and these allowed processors.
    pub(super) fn doubts(&self, loops: usize, allowed: &[usize]) -> Vec<Error> {
        let mut doubts = Vec::new();
        let listed: &[Vec<usize>] = match self {
            Affinity::Masks(masks) => masks,
            Affinity::Auto(mask) => std::slice::from_ref(mask),
        };
        if let Affinity::Masks(masks) = self
            && masks.len() > 1
            && masks.len() != loops
        {
            doubts.push(Error::warn(
                "the number of \"worker_processes\" is not equal to the number of \
                 \"worker_cpu_affinity\" masks, using last mask for remaining worker processes",
            ));
        }
        if let Some(cpu) = listed.iter().flatten().find(|cpu| !allowed.contains(cpu)) {
            doubts.push(Error::warn(format!(
                "\"worker_cpu_affinity\" names CPU {cpu}, which weir cannot run on"
            )));
        }
        doubts
    }
}

/// Why a text is no mask. [`fmt::Display`] gives nginx's text.
#[derive(Debug, PartialEq, Eq)]
enum MaskError {
    /// It has more digits than the kernel has processors.
    Long,
    /// It has a character other than `0` and `1`.
    Digit(char),
}

impl fmt::Display for MaskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MaskError::Long => {
                let most = CpuSet::MAX_CPU;
                write!(f, "\"worker_cpu_affinity\" supports up to {most} CPUs only")
            }
            MaskError::Digit(other) => {
                write!(f, "invalid character \"{other}\" in \"worker_cpu_affinity\"")
            }
        }
    }
}

/// Parses a mask such as `0101`, whose last digit is processor 0.
fn mask(text: &[u8]) -> Result<Vec<usize>, MaskError> {
    if text.len() > CpuSet::MAX_CPU {
        return Err(MaskError::Long);
    }
    let mut cpus = Vec::new();
    let digits = text.iter().rev().filter(|b| **b != b' ');
    for (cpu, digit) in digits.enumerate() {
        match digit {
            b'0' => {}
            b'1' => cpus.push(cpu),
            other => return Err(MaskError::Digit(char::from(*other))),
        }
    }
    Ok(cpus)
}

#[cfg(test)]
mod tests {
    use super::*;

    proptest::proptest! {
        #[test]
        fn a_mask_lists_its_ones(cpus in proptest::collection::btree_set(0_usize..1024, 0..9)) {
            let most = cpus.last().copied().unwrap_or(0);
            let digit = |cpu| if cpus.contains(&cpu) { b'1' } else { b'0' };
            let text: Vec<u8> = (0..=most).rev().map(digit).collect();
            proptest::prop_assert_eq!(mask(&text).unwrap(), cpus.into_iter().collect::<Vec<_>>());
        }

        #[test]
        fn any_bytes_are_a_mask_or_refused(text: Vec<u8>) {
            let _ = mask(&text);
        }
    }

    #[test]
    fn masks_count_from_the_right_and_skip_spaces() {
        assert_eq!(mask(b"0101").unwrap(), [0, 2]);
        assert_eq!(mask(b"1000 0000").unwrap(), [7]);
        assert_eq!(mask(b"0").unwrap(), Vec::<usize>::new());
        assert_eq!(mask(b"12").unwrap_err().to_string(), {
            "invalid character \"2\" in \"worker_cpu_affinity\""
        });
        assert!(mask(&[b'0'; 1025]).unwrap_err().to_string().contains("up to 1024 CPUs"));
    }

    #[test]
    fn the_last_mask_is_for_the_rest() {
        let a = Affinity::Masks(vec![vec![0], vec![1]]);
        assert!(a.of(0).unwrap().is_set(0) && !a.of(0).unwrap().is_set(1));
        assert!(a.of(1).unwrap().is_set(1) && a.of(7).unwrap().is_set(1));
    }

    #[test]
    fn auto_goes_round() {
        let a = Affinity::Auto(vec![1, 3]);
        assert!(a.of(0).unwrap().is_set(1) && a.of(1).unwrap().is_set(3));
        assert!(a.of(2).unwrap().is_set(1));
        assert_eq!(Affinity::Auto(Vec::new()).of(0), None);
    }

    #[test]
    fn missing_processors_and_counts_that_differ_are_doubted() {
        let text = |a: Affinity, loops| {
            let doubts = a.doubts(loops, &[0, 1]);
            doubts.into_iter().map(|e| e.message).collect::<Vec<_>>().join("\n")
        };
        assert_eq!(text(Affinity::Masks(vec![vec![0], vec![1]]), 2), "");
        assert_eq!(text(Affinity::Masks(vec![vec![0, 1]]), 8), "");
        assert!(text(Affinity::Masks(vec![vec![0], vec![1]]), 3).contains("using last mask"));
        assert!(text(Affinity::Auto(vec![0, 5]), 2).contains("names CPU 5, which"));
    }
}
