//! Walks a tree in file order and applies the rules of all directives: known, allowed here, right
//! number of arguments, not twice, built. nginx: ngx_conf_handler().

use std::collections::{HashMap, HashSet};

use crate::block::Block;
use crate::context::Contexts;
use crate::elsewhere;
use crate::error::Error;
use crate::known::{DirectiveForm, Effect, KnownDirective, inside, known};
use crate::suggest;
use crate::tree::{ConfigTree, Directive, DirectiveBody};

/// How many directives a summary names.
const NAMED: usize = 8;

/// Checks a whole tree. `built` tells which directives weir has, by their contexts.
///
/// Returns the warnings, or the first error in file order. Errors that nginx has as well come
/// before those of directives that are not built yet.
pub fn check(
    tree: &ConfigTree,
    built: &dyn Fn(&KnownDirective, Contexts) -> bool,
) -> Result<Vec<Error>, Error> {
    let mut walk = Walk {
        built,
        warnings: Vec::new(),
        warned: HashSet::new(),
        refused: Vec::new(),
        unbuilt: 0,
    };
    walk.block(&tree.main, Contexts::MAIN, BlockState::Built)?;
    if let Some(error) = &tree.broken {
        return Err(error.clone());
    }
    if !tree.main.iter().any(|d| d.name.is("events")) {
        return Err(Error::emerg("no \"events\" section in configuration"));
    }
    match summary(walk.refused) {
        Some(error) => Err(error),
        None => Ok(walk.warnings),
    }
}

struct Walk<'a> {
    built: &'a dyn Fn(&KnownDirective, Contexts) -> bool,
    warnings: Vec<Error>,
    /// Directives that were warned of as not built. Each is reported once.
    warned: HashSet<&'static str>,
    refused: Vec<Error>,
    /// The number of directives that are not built.
    unbuilt: usize,
}

/// Whether the block around a directive is built. If not, that was reported once for the whole
/// block.
#[derive(Clone, Copy, PartialEq, Eq)]
enum BlockState {
    Built,
    NotBuilt,
}

impl Walk<'_> {
    fn block(
        &mut self,
        list: &[Directive],
        context: Contexts,
        part: BlockState,
    ) -> Result<(), Error> {
        // The directives of this block so far, with the fixed words that each was given.
        let mut before: HashMap<&'static str, Vec<&'static str>> = HashMap::new();
        for directive in list {
            let known = find(directive, context)?;
            shape(directive, known)?;
            if !known.args.allow(directive.args.len()) {
                return Err(wrong_count(directive, known));
            }
            if known.once && before.contains_key(known.name) {
                return Err(directive.problem("is duplicate"));
            }
            let given = before.entry(known.name).or_default();
            self.warnings.extend(directive.check_arguments(known.args.value, given)?);
            let part = self.built(directive, known, context, part);
            if let (Some(context), Some(block)) = (inside(known, context), directive.shared_block())
            {
                self.inside(block, context, part)?;
            }
        }
        Ok(())
    }

    /// Checks a block. One that was clean in this context before is skipped.
    fn inside(&mut self, block: &Block, context: Contexts, part: BlockState) -> Result<(), Error> {
        if block.is_clean_in(context) {
            return Ok(());
        }
        let before = (self.warnings.len(), self.unbuilt);
        self.block(block, context, part)?;
        if part == BlockState::Built && before == (self.warnings.len(), self.unbuilt) {
            block.note_clean_in(context);
        }
        Ok(())
    }

    /// Reports a directive that is not built, unless the block around it was reported already.
    fn built(
        &mut self,
        d: &Directive,
        known: &KnownDirective,
        context: Contexts,
        part: BlockState,
    ) -> BlockState {
        if part == BlockState::NotBuilt || (self.built)(known, context) {
            return part;
        }
        self.unbuilt += 1;
        let message = format!("\"{}\" directive is known but not built into weir yet", known.name);
        match known.effect {
            Effect::EmergUnless(harmless) if asks_for(d, harmless) => {}
            Effect::Emerg | Effect::EmergUnless(_) => {
                let error = d.error(message);
                self.refused.push(match elsewhere::instead(known.module) {
                    Some(advice) => error.hint(advice),
                    None => error,
                });
            }
            Effect::Warn if !self.warned.insert(known.name) => {}
            Effect::Warn => self.warnings.push(d.warning(format!("{message}, ignored"))),
        }
        BlockState::NotBuilt
    }
}

fn asks_for(directive: &Directive, value: &str) -> bool {
    match directive.args.as_slice() {
        [only] => only.bytes.eq_ignore_ascii_case(value.as_bytes()),
        _ => false,
    }
}

fn find(directive: &Directive, context: Contexts) -> Result<&'static KnownDirective, Error> {
    let name = &directive.name.bytes;
    if let Some(found) = known(name).find(|k| k.contexts.meets(context)) {
        return Ok(found);
    }
    let places: Vec<String> = known(name).map(|k| k.contexts.to_string()).collect();
    if !places.is_empty() {
        let error = directive.problem("is not allowed here");
        return Err(error.hint(format!("it may stand in: {}", places.join(", "))));
    }
    let error = directive.error(format!("unknown directive \"{}\"", directive.name.lossy()));
    Err(if name.starts_with(b"\xef\xbb\xbf") {
        error.hint("the file begins with a byte order mark; save it without one")
    } else if let Some(advice) = directive.name.str().and_then(elsewhere::advice) {
        error.hint(advice)
    } else if let Some(close) = suggest::directive(name, context) {
        error.hint(format!("did you mean \"{close}\"?"))
    } else {
        error
    })
}

/// Checks that the directive ends as its form requires: with a semicolon or with braces.
fn shape(directive: &Directive, known: &KnownDirective) -> Result<(), Error> {
    let name = known.name;
    match (known.shape, &directive.body) {
        (DirectiveForm::Statement, DirectiveBody::None) => Ok(()),
        (DirectiveForm::Statement, _) => {
            Err(directive.error(format!("directive \"{name}\" is not terminated by \";\"")))
        }
        (_, DirectiveBody::None) => {
            Err(directive.error(format!("directive \"{name}\" has no opening \"{{\"")))
        }
        _ => Ok(()),
    }
}

fn wrong_count(directive: &Directive, found: &KnownDirective) -> Error {
    let message = format!("invalid number of arguments in \"{}\" directive", found.name);
    let error = directive.error(message);
    // A word that begins on a later line and names a directive: the semicolon before it is missing.
    let mut before = &directive.name;
    for word in &directive.args {
        if word.pos.line > before.pos.line && known(&word.bytes).next().is_some() {
            return error
                .mark(before.pos)
                .hint(format!("is a \";\" missing at the end of line {}?", before.pos.line));
        }
        before = word;
    }
    error.hint(match (found.args.min, found.args.max) {
        (0, 0) => "it takes no arguments".to_owned(),
        (1, 1) => "it takes one argument".to_owned(),
        (min, u8::MAX) => format!("it takes {min} or more arguments"),
        (min, max) if min == max => format!("it takes {min} arguments"),
        (min, max) => format!("it takes {min} to {max} arguments"),
    })
}

/// The first refusal, with the names of the others as advice.
fn summary(refused: Vec<Error>) -> Option<Error> {
    let mut list = refused.into_iter();
    let mut first = list.next()?;
    let quoted = |e: &Error| e.message.split('"').nth(1).map(str::to_owned);
    let mut names: Vec<String> = Vec::new();
    for name in list.filter_map(|e| quoted(&e)) {
        if Some(&name) != quoted(&first).as_ref() && !names.contains(&name) {
            names.push(name);
        }
    }
    if names.is_empty() {
        return Some(first);
    }
    let more = names.len().saturating_sub(NAMED);
    names.truncate(NAMED);
    let tail = if more > 0 { format!(" and {more} more") } else { String::new() };
    let also = format!("not built yet either: {}{tail}", names.join(", "));
    Some(match first.hint.take() {
        Some(advice) => first.hint(format!("{advice}; {also}")),
        None => first.hint(also),
    })
}

#[cfg(test)]
mod tests;
