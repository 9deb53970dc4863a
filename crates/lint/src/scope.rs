//! Where a directive stands, and what holds there.

use weir_conf::{Directive, DirectiveBody};

/// The blocks around a directive.
pub(crate) struct BlockPath<'a> {
    main: &'a [Directive],
    blocks: Vec<&'a Directive>,
}

impl<'a> BlockPath<'a> {
    pub(crate) fn new(main: &'a [Directive]) -> BlockPath<'a> {
        BlockPath { main, blocks: Vec::new() }
    }

    pub(crate) fn enter(&mut self, block: &'a Directive) {
        self.blocks.push(block);
    }

    pub(crate) fn leave(&mut self) {
        self.blocks.pop();
    }

    /// The directives of the innermost block.
    pub(crate) fn inner(&self) -> &'a [Directive] {
        self.blocks.last().map_or(self.main, |block| block.block())
    }

    /// The innermost block, unless there is none.
    pub(crate) fn block(&self) -> Option<&'a Directive> {
        self.blocks.last().copied()
    }

    /// The innermost block of this name.
    pub(crate) fn around(&self, name: &str) -> Option<&'a Directive> {
        self.blocks.iter().rev().copied().find(|block| block.name.is(name))
    }

    /// The lists from the innermost block outwards.
    pub(crate) fn outwards(&self) -> impl Iterator<Item = &'a [Directive]> {
        let blocks = self.blocks.iter().rev().map(|block| block.block());
        blocks.chain([self.main])
    }

    /// The directives of this name that hold here: those of the innermost block that has any.
    pub(crate) fn holding(&self, name: &str) -> Vec<&'a Directive> {
        let of = |list: &'a [Directive]| -> Vec<_> {
            list.iter().filter(|directive| directive.name.is(name)).collect()
        };
        self.outwards().map(of).find(|found| !found.is_empty()).unwrap_or_default()
    }

    /// Any directive of this name in the whole `http` or `stream` around.
    pub(crate) fn anywhere(&self, name: &str) -> Vec<&'a Directive> {
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

/// Its block has directives, not lines of its own form.
pub(crate) fn has_directives(directive: &Directive) -> bool {
    let free = ["types", "map", "geo", "split_clients", "charset_map", "match"];
    matches!(directive.body, DirectiveBody::Block(_))
        && !free.iter().any(|name| directive.name.is(name))
}
