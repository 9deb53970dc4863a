//! Fuzz target: pages with commands, in one piece and byte by byte.

use super::parser::{Command, Event};
use super::tests::events;

#[test]
fn page() {
    bolero::check!().for_each(|page: &[u8]| {
        let whole = events(&[page]);
        let bytes: Vec<&[u8]> = page.chunks(1).collect();
        assert_eq!(events(&bytes), whole);
        assert!(whole.iter().map(text_len).sum::<usize>() <= page.len());
        for event in whole {
            if let Event::Command(command) = event {
                written_is_read(&command);
            }
        }
    });
}

fn text_len(event: &Event) -> usize {
    match event {
        Event::Text(text) => text.len(),
        _ => 0,
    }
}

/// A command that is stored in a block is parsed as the same command. A value with a `"` is an
/// exception, since nginx writes it unescaped as well.
fn written_is_read(command: &Command) {
    if command.params.iter().any(|(_, value)| value.contains(&b'"')) {
        return;
    }
    let mut written = Vec::new();
    command.write(&mut written);
    assert_eq!(events(&[&written]), [Event::Command(command.clone())]);
}
