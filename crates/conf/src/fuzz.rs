//! Fuzz targets: any configuration is either read or refused with a position in it.
//!
//! As plain tests they run the kept corpus (`__fuzz__/*/corpus`) and a second of random inputs;
//! CONTRIBUTING.md tells how to let a fuzzer look for longer.

use std::path::Path;

use crate::{Error, Parts, Sources, check, read_text, values};

/// Reads a text and checks it as if all directives were built.
#[test]
fn text() {
    bolero::check!().for_each(|input: &[u8]| {
        // Another file's content says nothing about this reader.
        if holds(input, b"include") {
            return;
        }
        let tree = read_text(Path::new("fuzz.conf"), input);
        if let Some(error) = &tree.broken {
            sound(error, &tree.sources, input);
        }
        match check(&tree, &|_, _| true) {
            Ok(warnings) => warnings.iter().for_each(|error| sound(error, &tree.sources, input)),
            Err(error) => sound(&error, &tree.sources, input),
        }
    });
}

/// Parts are read, or refused with a reason; names in place of their texts make the same configuration.
#[test]
fn parts() {
    bolero::check!().for_each(|input: &[u8]| {
        let bytes = [b"weir parts 1\n", input].concat();
        let Ok((tree, parts)) = Parts::default().read(&bytes, None) else { return };
        if let Some(error) = &tree.broken {
            assert!(tree.sources.explain(error).starts_with(&tree.sources.first_line(error)));
        }
        let again = parts.read(&bytes, None).map(|(again, _)| again.main);
        assert!(tree.broken.is_some() || again == Ok(tree.main));
    });
}

/// An error points into the text and can be shown.
fn sound(error: &Error, sources: &Sources, input: &[u8]) {
    let lines = 1 + input.iter().filter(|&&ch| ch == b'\n').count();
    for pos in [error.at, error.mark].into_iter().flatten() {
        assert!((1..=lines).contains(&(pos.line as usize)), "{error:?}");
        assert!((1..=input.len() + 1).contains(&(pos.column as usize)), "{error:?}");
    }
    assert!(!error.message.is_empty());
    let shown = sources.explain(error);
    assert!(shown.starts_with(&sources.first_line(error)));
}

#[test]
fn value() {
    bolero::check!().for_each(|input: &[u8]| {
        let (size, offset) = (values::size(input), values::offset(input));
        assert!(size.is_none() || size == offset, "all sizes are offsets");
        if let Some(number) = values::number(input) {
            assert_eq!(size, Some(number), "a number is a size without a unit");
        }
        let (msec, sec) = (values::msec(input), values::sec(input));
        assert!(msec.is_none() || values::duration(input).is_some());
        if let (Some(msec), Some(sec)) = (msec, sec)
            && !holds(input, b"ms")
            && input.last().is_some_and(u8::is_ascii_alphabetic)
        {
            assert_eq!(msec, sec * 1000);
        }
        values::flag(input);
    });
}

fn holds(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}
