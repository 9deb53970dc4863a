//! Reads directives of TLS.

use weir_conf::{Directive as Line, Error, Spot};
use weir_values::{Inputs, Reading, Subject, Template, Variables};

use crate::files::KeyFiles;
use crate::ocsp::Stapling;

/// What directives of TLS may read and add to.
pub struct SslReader<'r, 'i, S> {
    /// From outside of the configuration.
    pub inputs: Inputs<'i>,
    /// All variables, defined and referred to.
    pub variables: &'r mut Variables<S>,
    /// Warnings, which do not stop the start.
    pub warnings: &'r mut Vec<Error>,
    /// Certificates and keys, each read once.
    pub files: &'r mut KeyFiles,
    /// OCSP responses to be fetched and stapled.
    pub staplings: &'r mut Vec<Stapling>,
}

impl<S: Subject> SslReader<'_, '_, S> {
    /// The part of this that reads values with variables.
    pub fn reading(&mut self) -> Reading<'_, S> {
        Reading { variables: self.variables, warnings: self.warnings }
    }
}

/// A line, and whether it is the first of its directive in the block.
#[derive(Clone, Copy)]
pub struct DirectiveUse<'l> {
    /// The line.
    pub line: &'l Line,
    /// The first in its block. It replaces an inherited list.
    pub first: bool,
}

impl DirectiveUse<'_> {
    /// An error for the second line in a block: nginx's `is duplicate`.
    pub fn once(&self) -> Result<(), Error> {
        match self.first {
            true => Ok(()),
            false => Err(self.line.problem("is duplicate")),
        }
    }

    /// Reads a directive that may stand once in a block into `place`.
    pub fn set<T>(
        &self,
        place: &mut T,
        read: impl FnOnce(&Line) -> Result<T, Error>,
    ) -> Result<(), Error> {
        self.once()?;
        *place = read(self.line)?;
        Ok(())
    }

    /// Adds to a list. The first line in a block replaces what was inherited.
    pub fn add<T>(&self, list: &mut Vec<T>, more: Option<T>) -> Result<(), Error> {
        if self.first {
            list.clear();
        }
        list.extend(more);
        Ok(())
    }
}

/// Reads one use of a directive into the settings `C`.
pub type SetDirective<S, C> =
    fn(&mut C, DirectiveUse<'_>, &mut SslReader<'_, '_, S>) -> Result<(), Error>;

/// A directive.
pub struct SslDirective<S, C> {
    /// The name in configurations.
    pub name: &'static str,
    /// One sentence for docs/directives.md.
    pub help: &'static str,
    /// Reads a line.
    pub set: SetDirective<S, C>,
}

impl<S, C> SslDirective<S, C> {
    /// Reads a line by the row with its name.
    pub fn read(
        rows: &[SslDirective<S, C>],
        conf: &mut C,
        directive: DirectiveUse<'_>,
        reader: &mut SslReader<'_, '_, S>,
    ) -> Result<(), Error> {
        let row = rows.iter().find(|row| directive.line.name.is(row.name));
        row.map_or(Ok(()), |row| (row.set)(conf, directive, reader))
    }
}

/// A file that a directive names.
#[derive(Debug, Clone)]
pub struct NamedFile {
    /// The name as written.
    pub name: Vec<u8>,
    /// For error messages.
    pub at: Spot,
}

impl NamedFile {
    /// The name as a template, since it may have variables.
    pub fn template<S: Subject>(&self, variables: &mut Variables<S>) -> Result<Template, Error> {
        Template::new(variables, &self.name).map_err(|text| self.at.error(text))
    }
}
