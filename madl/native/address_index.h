/* Blocks in address order, with the largest below each, so that the first that fits
 * is found in O(log n): a treap, balanced by random priorities. */
#ifndef MADL_ADDRESS_INDEX_H
#define MADL_ADDRESS_INDEX_H

#include <stdint.h>
#include <stdlib.h>

struct Lane;
struct Use;

typedef struct Block {
    uint64_t offset, nbytes;
    struct Block *before, *after; /* what lies beside it */
    struct Lane *lane;            /* whose stream may use it without waiting */
    struct Use *uses;             /* other streams that use it */
    int is_used_anywhere;         /* by one more, which there was no memory to note */
    int is_live, is_parked;       /* neither: it is in the index of its lane */
    struct Block *next_parked;
    struct Block *left, *right; /* in an index */
    uint64_t largest;           /* of itself and all below it there */
    uint32_t priority;
} Block;

static inline uint64_t largest_of(const Block *block) {
    return block ? block->largest : 0;
}

static void measure(Block *block) {
    uint64_t left = largest_of(block->left), right = largest_of(block->right);
    block->largest = block->nbytes;
    if (left > block->largest) block->largest = left;
    if (right > block->largest) block->largest = right;
}

/* Cut an index in two, at an offset. */
static void split_index(Block *root, uint64_t offset, Block **below, Block **from) {
    if (!root) {
        *below = *from = NULL;
    } else if (root->offset < offset) {
        split_index(root->right, offset, &root->right, from);
        measure(*below = root);
    } else {
        split_index(root->left, offset, below, &root->left);
        measure(*from = root);
    }
}

/* Join two indexes, of which the first lies below the second. */
static Block *join_indexes(Block *low, Block *high) {
    if (!low || !high) return low ? low : high;
    if (low->priority > high->priority) {
        low->right = join_indexes(low->right, high);
        measure(low);
        return low;
    }
    high->left = join_indexes(low, high->left);
    measure(high);
    return high;
}

static void insert_block(Block **root, Block *block) {
    Block *below, *from;
    block->left = block->right = NULL;
    measure(block);
    split_index(*root, block->offset, &below, &from);
    *root = join_indexes(join_indexes(below, block), from);
}

static void remove_block(Block **root, Block *block) {
    Block *below, *from, *self, *above;
    split_index(*root, block->offset, &below, &from);
    split_index(from, block->offset + 1, &self, &above);
    *root = join_indexes(below, above);
}

static Block *first_fit(Block *root, uint64_t nbytes) {
    if (largest_of(root) < nbytes) return NULL;
    for (;;) {
        if (largest_of(root->left) >= nbytes)
            root = root->left;
        else if (root->nbytes >= nbytes)
            return root;
        else
            root = root->right;
    }
}

static Block *block_at(Block *root, uint64_t offset) {
    while (root && root->offset != offset)
        root = offset < root->offset ? root->left : root->right;
    return root;
}

#endif
