//! Parses the condition of an `if`, as nginx does. The parentheses may be words of their own.

use weir_conf::{Directive, Error, Word};

use super::code::{FileTest, Test};
use crate::config::scope::Scope;
use crate::variables::VariableId;

/// Reads the condition between `if` and its block.
pub fn read(s: &mut Scope<'_, '_>, d: &Directive) -> Result<Test, Error> {
    let words = unwrap(d)?;
    let Some(first) = words.first() else { return Err(invalid(d, &d.name)) };
    match (first.bytes.as_slice(), words.as_slice()) {
        ([b'$', _, ..], [variable]) => Ok(Test::True(refer(s, variable))),
        ([b'$', _, ..], [variable, operator, operand]) => {
            compare(s, d, variable, operator, operand)
        }
        ([b'-', kind], [operator, path]) => file(s, d, *kind, false, operator, path),
        ([b'!', b'-', kind], [operator, path]) => file(s, d, *kind, true, operator, path),
        _ => Err(invalid(d, first)),
    }
}

/// The words without the parentheses around them.
fn unwrap(d: &Directive) -> Result<Vec<Word>, Error> {
    let mut words = d.args.clone();
    let first = words.first_mut().ok_or_else(|| invalid(d, &d.name))?;
    match first.bytes.as_slice() {
        [b'('] if d.args.len() > 1 => drop(words.remove(0)),
        [b'(', _, ..] => drop(first.bytes.remove(0)),
        _ => return Err(invalid(d, &first.clone())),
    }
    let alone = words.len() == 1;
    let last = words.last_mut().ok_or_else(|| invalid(d, &d.name))?;
    match last.bytes.as_slice() {
        // The parentheses are empty, so this word is reported as the invalid condition.
        [b')'] if alone => {}
        [b')'] => drop(words.pop()),
        [.., b')'] => drop(last.bytes.pop()),
        _ => return Err(invalid(d, &last.clone())),
    }
    Ok(words)
}

fn compare(
    s: &mut Scope<'_, '_>,
    d: &Directive,
    variable: &Word,
    operator: &Word,
    operand: &Word,
) -> Result<Test, Error> {
    let variable = refer(s, variable);
    let (not, plain) = match operator.bytes.strip_prefix(b"!") {
        Some(rest) => (true, rest),
        None => (false, operator.bytes.as_slice()),
    };
    match plain {
        b"=" => Ok(Test::Equal { variable, value: s.setup.template(d, operand)?, not }),
        b"~" | b"~*" => {
            let pattern = s.setup.regex(d, operand, &operand.bytes, plain == b"~*")?;
            Ok(Test::Match { variable, pattern, not })
        }
        _ => {
            let text = format!("unexpected \"{}\" in condition", operator.lossy());
            Err(d.error_at(operator, text))
        }
    }
}

fn file(
    s: &mut Scope<'_, '_>,
    d: &Directive,
    kind: u8,
    not: bool,
    operator: &Word,
    path: &Word,
) -> Result<Test, Error> {
    let kind = match kind {
        b'f' => FileTest::Plain,
        b'd' => FileTest::Directory,
        b'e' => FileTest::Exists,
        b'x' => FileTest::Executable,
        _ => return Err(invalid(d, operator)),
    };
    Ok(Test::File { kind, path: s.setup.template(d, path)?, not })
}

fn refer(s: &mut Scope<'_, '_>, word: &Word) -> VariableId {
    s.setup.variables.refer(word.bytes.get(1..).unwrap_or_default())
}

fn invalid(d: &Directive, word: &Word) -> Error {
    d.invalid("condition", word)
}
