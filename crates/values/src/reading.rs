//! Reads values of a configuration.

use std::collections::HashSet;

use weir_conf::{Directive, Error, Word};

use crate::regex::Regex;
use crate::subject::Subject;
use crate::template::Template;
use crate::variables::{VariableId, Variables};

/// The directives that a block has used so far.
#[derive(Debug, Default)]
pub struct UsedDirectives(HashSet<Vec<u8>>);

impl UsedDirectives {
    /// True for the first line of the directive in its block, which replaces an inherited list.
    pub fn first(&mut self, d: &Directive) -> bool {
        self.first_of(&d.name.bytes)
    }

    /// As [`UsedDirectives::first`], for several directives that add to one list.
    pub fn first_of(&mut self, names: &[u8]) -> bool {
        self.0.insert(names.to_vec())
    }

    /// An error for the second line in a block: nginx's `is duplicate`.
    pub fn once(&mut self, d: &Directive) -> Result<(), Error> {
        if self.first(d) {
            return Ok(());
        }
        Err(d.problem("is duplicate"))
    }

    /// Whether the block has used the directive.
    pub fn contains(&self, name: &str) -> bool {
        self.0.contains(name.as_bytes())
    }
}

/// The state that directives read and add to.
pub struct Reading<'r, S> {
    /// All variables, defined and referred to.
    pub variables: &'r mut Variables<S>,
    /// Warnings, which do not stop the start.
    pub warnings: &'r mut Vec<Error>,
}

impl<S: Subject> Reading<'_, S> {
    /// Compiles a word as a template. Errors point at the word.
    pub fn template(&mut self, d: &Directive, word: &Word) -> Result<Template, Error> {
        self.template_of(d, word, &word.bytes)
    }

    /// As [`Reading::template`], for a text that was made of the word or a part of it.
    pub fn template_of(
        &mut self,
        d: &Directive,
        word: &Word,
        text: &[u8],
    ) -> Result<Template, Error> {
        Template::new(self.variables, text).map_err(|error| d.error_at(word, error))
    }

    /// Compiles a regular expression. Errors point at the word.
    pub fn regex(
        &mut self,
        d: &Directive,
        word: &Word,
        pattern: &[u8],
        caseless: bool,
    ) -> Result<Regex, Error> {
        Regex::new(self.variables, pattern, caseless).map_err(|error| d.error_at(word, error))
    }

    /// The name of a variable that a directive defines. Built-in variables cannot be defined.
    pub fn new_variable(&self, d: &Directive, word: &Word) -> Result<String, Error> {
        let name = variable_name(d, word)?;
        if self.variables.is_fixed(name) {
            let name = String::from_utf8_lossy(name);
            return Err(d.error_at(word, format!("the duplicate \"{name}\" variable")));
        }
        Ok(String::from_utf8_lossy(name).into_owned())
    }

    /// The variable that a word names, with its `$`.
    pub fn refer_variable(&mut self, d: &Directive, word: &Word) -> Result<VariableId, Error> {
        Ok(self.variables.refer(variable_name(d, word)?))
    }
}

fn variable_name<'w>(d: &Directive, word: &'w Word) -> Result<&'w [u8], Error> {
    let name = word.bytes.strip_prefix(b"$").filter(|name| !name.is_empty());
    name.ok_or_else(|| d.invalid("variable name", word))
}
