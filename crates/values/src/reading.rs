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
    /// True the first time that the block uses the directive: the moment to drop an inherited list.
    pub fn first(&mut self, d: &Directive) -> bool {
        self.first_of(&d.name.bytes)
    }

    /// The same for several directives that make one list.
    pub fn first_of(&mut self, names: &[u8]) -> bool {
        self.0.insert(names.to_vec())
    }

    /// For directives that may stand once in a block: nginx's `is duplicate`.
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

/// What a directive adds to while it is read.
pub struct Reading<'r, S> {
    /// All variables, defined and referred to.
    pub variables: &'r mut Variables<S>,
    /// What was noticed that does not stop the start.
    pub warnings: &'r mut Vec<Error>,
}

impl<S: Subject> Reading<'_, S> {
    /// A value with variables; errors point at the word.
    pub fn template(&mut self, d: &Directive, word: &Word) -> Result<Template, Error> {
        self.template_of(d, word, &word.bytes)
    }

    /// The same for a part of the word, or what is made of it.
    pub fn template_of(
        &mut self,
        d: &Directive,
        word: &Word,
        text: &[u8],
    ) -> Result<Template, Error> {
        Template::new(self.variables, text).map_err(|error| d.error_at(word, error))
    }

    /// A regular expression in a word; errors point at the word.
    pub fn regex(
        &mut self,
        d: &Directive,
        word: &Word,
        pattern: &[u8],
        caseless: bool,
    ) -> Result<Regex, Error> {
        Regex::new(self.variables, pattern, caseless).map_err(|error| d.error_at(word, error))
    }

    /// The name of a variable that a directive defines. The built-in variables cannot be defined.
    pub fn new_variable(&self, d: &Directive, word: &Word) -> Result<String, Error> {
        let name = variable_name(d, word)?;
        if self.variables.is_fixed(name) {
            let name = String::from_utf8_lossy(name);
            return Err(d.error_at(word, format!("the duplicate \"{name}\" variable")));
        }
        Ok(String::from_utf8_lossy(name).into_owned())
    }

    /// A variable that a directive names with its `$`.
    pub fn refer_variable(&mut self, d: &Directive, word: &Word) -> Result<VariableId, Error> {
        Ok(self.variables.refer(variable_name(d, word)?))
    }
}

fn variable_name<'w>(d: &Directive, word: &'w Word) -> Result<&'w [u8], Error> {
    let name = word.bytes.strip_prefix(b"$").filter(|name| !name.is_empty());
    name.ok_or_else(|| d.invalid("variable name", word))
}
