//! The position of a directive in its blocks, and what is in force there: for rules over a whole
//! configuration.

use crate::block::{Block, Inside};
use crate::tree::{Directive, DirectiveBody};

/// The blocks around a directive.
#[derive(Debug)]
pub struct BlockPath<'a> {
    main: &'a [Directive],
    blocks: Vec<&'a Directive>,
}

impl<'a> BlockPath<'a> {
    /// The position outside of all blocks.
    pub fn new(main: &'a [Directive]) -> BlockPath<'a> {
        BlockPath { main, blocks: Vec::new() }
    }

    /// Goes into a block.
    pub fn enter(&mut self, block: &'a Directive) {
        self.blocks.push(block);
    }

    /// Goes out of the innermost block.
    pub fn leave(&mut self) {
        self.blocks.pop();
    }

    /// The directives of the innermost block.
    pub fn inner(&self) -> &'a [Directive] {
        self.blocks.last().map_or(self.main, |block| block.block())
    }

    /// The innermost block, unless there is none.
    pub fn block(&self) -> Option<&'a Directive> {
        self.blocks.last().copied()
    }

    /// The innermost block of this name.
    pub fn around(&self, name: &str) -> Option<&'a Directive> {
        self.blocks.iter().rev().copied().find(|block| block.name.is(name))
    }

    /// The lists from the innermost block outwards.
    pub fn outwards(&self) -> impl Iterator<Item = &'a [Directive]> {
        let blocks = self.blocks.iter().rev().map(|block| block.block());
        blocks.chain([self.main])
    }

    /// The directives of this name that are in force here: those of the innermost block that has
    /// any.
    pub fn holding(&self, name: &str) -> Vec<&'a Directive> {
        let of = |list: &'a [Directive]| -> Vec<_> {
            list.iter().filter(|directive| directive.name.is(name)).collect()
        };
        self.outwards().map(of).find(|found| !found.is_empty()).unwrap_or_default()
    }

    /// Any directive of this name in the whole `http` or `stream` around.
    pub fn anywhere(&self, name: &str) -> Vec<&'a Directive> {
        let mut out = Vec::new();
        let root = self.blocks.first().map_or(self.main, |block| block.block());
        collect(root, name, &mut out);
        out
    }
}

fn collect<'a>(list: &'a [Directive], name: &str, out: &mut Vec<&'a Directive>) {
    for directive in list {
        if directive.name.is(name) {
            out.push(directive);
        }
        if has_directives(directive) {
            collect(directive.block(), name, out);
        }
    }
}

/// Whether the block has directives, not lines of a form of its own.
fn has_directives(directive: &Directive) -> bool {
    let free = ["types", "map", "geo", "split_clients", "charset_map", "match"];
    matches!(directive.body, DirectiveBody::Block(_))
        && !free.iter().any(|name| directive.name.is(name))
}

/// Visits all directives, in the order of the text.
pub fn walk<'a>(scope: &mut BlockPath<'a>, see: &mut dyn FnMut(&BlockPath<'a>, &'a Directive)) {
    walk_where(scope, &|_| true, see);
}

/// As [`walk`], without the contents of blocks for which `has` is false.
pub fn walk_where<'a>(
    scope: &mut BlockPath<'a>,
    has: &dyn Fn(Inside) -> bool,
    see: &mut dyn FnMut(&BlockPath<'a>, &'a Directive),
) {
    for directive in scope.inner() {
        see(scope, directive);
        let is_wanted = |block: &Block| has_directives(directive) && has(block.inside());
        if directive.shared_block().is_some_and(is_wanted) {
            scope.enter(directive);
            walk_where(scope, has, see);
            scope.leave();
        }
    }
}
