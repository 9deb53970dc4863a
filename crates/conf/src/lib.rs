//! The nginx.conf language: lexer, parser, contexts, directive tables, errors with file and line.
//!
//! The way through this crate: [`read`] turns the main file and everything that it includes into a
//! [`ConfigTree`]. [`check`] walks that tree in file order and finds what nginx would refuse about
//! names, places and numbers of arguments. The crates that own the directives then read the
//! arguments with [`values`]. This crate does not know what a directive *means*: it knows no HTTP.
//!
//! Messages are nginx's, word for word, since scripts and people search for them. weir's additions
//! (the source line, a caret, "did you mean") are on further lines: [`Sources::explain`].
//!
//! A program makes directives with [`Directive::new`]. [`print`](print()) writes them as a text that
//! reads back as the same tree.
//!
//! - In: the path of a configuration file, or its text.
//! - Out: the tree of its directives, or an error with file, line and column.
//! - Callers: every crate that reads directives, and `weir lint`.
#![forbid(unsafe_code)]

mod advice;
mod block;
mod block_path;
mod build;
mod check;
mod context;
mod docs;
mod elsewhere;
mod error;
mod files;
#[cfg(test)]
mod fuzz;
mod glob;
mod known;
mod lexer;
mod lua;
mod panels;
mod parser;
mod parts;
mod place;
mod print;
mod source;
mod suggest;
mod tables;
mod tree;
pub mod values;
mod wire;

pub use advice::uses_variable;
pub use block::{Block, Inside};
pub use block_path::{BlockPath, walk};
pub use check::check;
pub use context::Contexts;
pub use docs::directives_page;
pub use error::{Error, Level, Spot};
pub use files::{FileTexts, files_asked, read_file, with_files};
pub use known::{Args, ArgumentKind, DirectiveForm, Effect, KnownDirective, all_known, known};
pub use panels::{open_panel, open_panels};
pub use parser::{read, read_fragment, read_text, read_text_with};
pub use parts::{Parts, PartsError};
pub use place::{path_of, read_tree};
pub use print::{PrintError, print, print_at};
pub use source::{Pos, SourceText, Sources};
pub use suggest::closest;
pub use tree::{ConfigTree, Directive, DirectiveBody, Word, is_same};
pub use wire::{read_bytes, write_bytes};
