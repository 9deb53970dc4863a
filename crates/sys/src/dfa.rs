//! PCRE2's alternative matching algorithm, which the crate `pcre2` lacks. It follows all
//! alternatives in parallel. So it finds the longest match but supports no groups.
//! pcre2matching(3).

use std::ops::Range;
use std::ptr::{self, NonNull};

use pcre2_sys::{
    PCRE2_CASELESS, PCRE2_DOTALL, PCRE2_ERROR_NOMATCH, PCRE2_EXTENDED, PCRE2_MULTILINE, PCRE2_UTF,
    pcre2_code_8, pcre2_code_free_8, pcre2_compile_8, pcre2_dfa_match_8,
    pcre2_get_ovector_pointer_8, pcre2_match_data_8, pcre2_match_data_create_8,
    pcre2_match_data_free_8,
};

/// The size of the workspace, in numbers. A match that needs more fails.
const WORKSPACE: usize = 1000;

/// Options of a pattern.
#[derive(Clone, Copy, Debug, Default)]
pub struct DfaOptions {
    /// Ignore case.
    pub caseless: bool,
    /// `^` and `$` match at each line.
    pub multi_line: bool,
    /// `.` matches line ends.
    pub dotall: bool,
    /// Ignore white space and comments in the pattern.
    pub extended: bool,
    /// Pattern and subject are UTF-8.
    pub utf: bool,
}

impl DfaOptions {
    fn bits(self) -> u32 {
        let bit = |set: bool, bit: u32| if set { bit } else { 0 };
        bit(self.caseless, PCRE2_CASELESS)
            | bit(self.multi_line, PCRE2_MULTILINE)
            | bit(self.dotall, PCRE2_DOTALL)
            | bit(self.extended, PCRE2_EXTENDED)
            | bit(self.utf, PCRE2_UTF)
    }
}

/// A compiled pattern.
#[derive(Debug)]
pub struct Dfa(NonNull<pcre2_code_8>);

impl Dfa {
    /// Compiles a pattern. The error is PCRE2's code.
    pub fn new(pattern: &str, options: DfaOptions) -> Result<Dfa, i32> {
        let (mut error, mut at) = (0, 0);
        // SAFETY: the pattern has the length that is said, and the two places for errors outlive the call.
        let code = unsafe {
            pcre2_compile_8(
                pattern.as_ptr(),
                pattern.len(),
                options.bits(),
                &raw mut error,
                &raw mut at,
                ptr::null_mut(),
            )
        };
        NonNull::new(code).map(Dfa).ok_or(error)
    }

    /// Finds the longest match from `start` on. The error is PCRE2's code.
    pub fn find(&self, subject: &[u8], start: usize) -> Result<Option<Range<usize>>, i32> {
        let data = MatchData::new().ok_or(pcre2_sys::PCRE2_ERROR_NOMEMORY)?;
        let mut workspace = [0; WORKSPACE];
        // SAFETY: the code was compiled and is not freed before `self`, the subject has the length that is said, and
        // PCRE2 looks at `start` itself. The workspace has the size that is said, and nothing keeps it.
        let found = unsafe {
            pcre2_dfa_match_8(
                self.0.as_ptr(),
                subject.as_ptr(),
                subject.len(),
                start,
                0,
                data.0.as_ptr(),
                ptr::null_mut(),
                workspace.as_mut_ptr(),
                WORKSPACE,
            )
        };
        match found {
            PCRE2_ERROR_NOMATCH => Ok(None),
            error if error < 0 => Err(error),
            // Zero: there is no space for the shorter matches, which are not needed.
            _ => Ok(Some(data.first())),
        }
    }
}

impl Drop for Dfa {
    fn drop(&mut self) {
        // SAFETY: it was compiled by `new`, and nothing else frees it.
        unsafe { pcre2_code_free_8(self.0.as_ptr()) }
    }
}

/// Match data for one match.
struct MatchData(NonNull<pcre2_match_data_8>);

impl MatchData {
    fn new() -> Option<MatchData> {
        // SAFETY: without a context PCRE2 takes memory by malloc(3).
        NonNull::new(unsafe { pcre2_match_data_create_8(1, ptr::null_mut()) }).map(MatchData)
    }

    /// The first match, which is the longest.
    fn first(&self) -> Range<usize> {
        // SAFETY: the data has room for one pair, which a match has written.
        unsafe {
            let pair = pcre2_get_ovector_pointer_8(self.0.as_ptr());
            *pair..*pair.add(1)
        }
    }
}

impl Drop for MatchData {
    fn drop(&mut self) {
        // SAFETY: it was made by `new`, and nothing else frees it.
        unsafe { pcre2_match_data_free_8(self.0.as_ptr()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_match_is_found() {
        let dfa = Dfa::new("he|hell", DfaOptions::default()).unwrap();
        assert_eq!(dfa.find(b"a hello", 0), Ok(Some(2..6)));
        assert_eq!(dfa.find(b"a hello", 3), Ok(None));
        assert_eq!(dfa.find(b"", 0), Ok(None));
        let caseless = DfaOptions { caseless: true, ..DfaOptions::default() };
        assert_eq!(Dfa::new("HE*", caseless).unwrap().find(b"hee", 0), Ok(Some(0..3)));
    }

    #[test]
    fn what_cannot_be_done_is_an_error() {
        assert!(Dfa::new("(", DfaOptions::default()).is_err());
        // Groups are unsupported, so back references fail.
        let refers = Dfa::new("(a)\\1", DfaOptions::default()).unwrap();
        assert!(refers.find(b"aa", 0).is_err());
        let dfa = Dfa::new("a", DfaOptions::default()).unwrap();
        assert!(dfa.find(b"a", 2).is_err());
        let utf = DfaOptions { utf: true, ..DfaOptions::default() };
        assert!(Dfa::new(".", utf).unwrap().find(b"\xFF", 0).is_err());
    }
}
