//! Fuzz target: a value of [`super::VARIABLE`] as another program may have written it.

use super::Passed;

#[test]
fn passed_descriptors() {
    bolero::check!().for_each(|input: &[u8]| {
        let Ok(text) = std::str::from_utf8(input) else { return };
        let Some(passed) = Passed::read(text) else { return };
        let written = passed.write();
        assert_eq!(Passed::read(&written), Some(passed), "{written}");
    });
}
