//! What structural tags look like.

use super::super::{
    constrained::SCHEMA_OR_TEXT,
    shape::{Field, Kind, Most, Shape, needed, optional, with_default},
};

/// What `structured_outputs.structural_tag` may be.
pub(in crate::api) static TAG_OR_TEXT: [Kind; 3] =
    [Kind::Object(&TAG_BY_PARTS), Kind::Object(&TAG_BY_STRUCTURES), Kind::TEXT];

/// A `response_format` of parts.
pub(in crate::api) static FORMAT_BY_PARTS: Shape =
    Shape::new("StructuralTagFormat", "Free text, and parts that have a form.", &[NAMED, BY_PARTS]);
/// A `response_format` of the older form.
pub(in crate::api) static FORMAT_BY_STRUCTURES: Shape =
    Shape::new("StructuralTagsFormat", "Free text, and tags that have a form.", &[NAMED, BY_STRUCTURES]);
pub(super) static TAG_BY_PARTS: Shape =
    Shape::new("StructuralTag", "Free text, and parts that have a form.", &[PERHAPS_NAMED, BY_PARTS]);
pub(super) static TAG_BY_STRUCTURES: Shape =
    Shape::new("StructuralTags", "Free text, and tags that have a form.", &[PERHAPS_NAMED, BY_STRUCTURES]);

static NAMED: &[Field] = &[needed("type", Kind::Word(&["structural_tag"]), "Which form.")];
static PERHAPS_NAMED: &[Field] = &[optional("type", Kind::Word(&["structural_tag"]), "What it is.")];
static BY_PARTS: &[Field] = &[needed("format", Kind::Either(&ANY_PART), "What the whole answer looks like.")];
static ANY_STRUCTURE: Kind = Kind::Object(&STRUCTURE);
static BY_STRUCTURES: &[Field] = &[
    optional("format", Kind::Absent, "Instead of the others."),
    needed("structures", Kind::List(&ANY_STRUCTURE, 1, Most::ANY), "The tags."),
    needed("triggers", Kind::List(&TRIGGER, 1, Most::ANY), "Texts that begin tags: each tag begins with one of them."),
];
pub(super) static STRUCTURE: Shape = Shape::new(
    "StructuralTagStructure",
    "JSON between two texts.",
    &[&[
        needed("begin", Kind::TEXT, "Before it."),
        needed("schema", SCHEMA_OR_TEXT, "A JSON schema, or the text of one."),
        needed("end", Kind::TEXT, "After it."),
    ]],
);

static TRIGGER: Kind = Kind::Text(1..=u64::MAX);
static PART: Kind = Kind::Either(&ANY_PART);
static ANY_PART: [Kind; 10] = [
    Kind::Object(&EXACTLY),
    Kind::Object(&SCHEMA),
    Kind::Object(&REGEX),
    Kind::Object(&GRAMMAR),
    Kind::Object(&ANYTHING),
    Kind::Object(&SEQUENCE),
    Kind::Object(&EITHER),
    Kind::Object(&TAG),
    Kind::Object(&TRIGGERED),
    Kind::Object(&SEPARATED),
];

pub(super) static EXACTLY: Shape = Shape::new(
    "ConstString",
    "One text.",
    &[&[needed("type", Kind::Word(&["const_string"]), "Which part."), needed("value", Kind::TEXT, "The text.")]],
);
pub(super) static SCHEMA: Shape = Shape::new(
    "JsonSchemaPart",
    "JSON that fits a schema.",
    &[&[
        needed("type", Kind::Word(&["json_schema"]), "Which part."),
        needed("json_schema", SCHEMA_OR_TEXT, "A JSON schema, or the text of one."),
    ]],
);
pub(super) static REGEX: Shape = Shape::new(
    "RegexPart",
    "What a regular expression matches.",
    &[&[
        needed("type", Kind::Word(&["regex"]), "Which part."),
        needed("pattern", Kind::TEXT, "It matches all of the part."),
    ]],
);
pub(super) static GRAMMAR: Shape = Shape::new(
    "GrammarPart",
    "A text of a grammar.",
    &[&[
        needed("type", Kind::Word(&["grammar"]), "Which part."),
        needed("grammar", Kind::TEXT, "In Lark's form, or GBNF."),
    ]],
);
pub(super) static ANYTHING: Shape = Shape::new(
    "AnyText",
    "Any text, at the end or before a text or a tag.",
    &[&[needed("type", Kind::Word(&["any_text"]), "Which part.")], EXCLUDES],
);
pub(super) static SEQUENCE: Shape = Shape::new(
    "SequencePart",
    "One part after the other.",
    &[&[needed("type", Kind::Word(&["sequence"]), "Which part.")], ELEMENTS],
);
pub(super) static EITHER: Shape =
    Shape::new("OrPart", "One of some parts.", &[&[needed("type", Kind::Word(&["or"]), "Which part.")], ELEMENTS]);
pub(super) static TAG: Shape = Shape::new(
    "TagPart",
    "A part between two texts.",
    &[&[needed("type", Kind::Word(&["tag"]), "Which part.")], BETWEEN_TEXTS],
);
pub(super) static PLAIN_TAG: Shape = Shape::new(
    "Tag",
    "A part between two texts.",
    &[&[optional("type", Kind::Word(&["tag"]), "What it is.")], BETWEEN_TEXTS],
);
pub(super) static TRIGGERED: Shape = Shape::new(
    "TriggeredTags",
    "Free text, and tags in it.",
    &[
        &[
            needed("type", Kind::Word(&["triggered_tags"]), "Which part."),
            needed(
                "triggers",
                Kind::List(&TRIGGER, 1, Most::ANY),
                "Texts that begin tags: each tag begins with one of them.",
            ),
        ],
        SOME_TAGS,
        EXCLUDES,
    ],
);
pub(super) static SEPARATED: Shape = Shape::new(
    "TagsWithSeparator",
    "Tags and nothing else.",
    &[
        &[
            needed("type", Kind::Word(&["tags_with_separator"]), "Which part."),
            needed("separator", Kind::TEXT, "Between two tags."),
        ],
        SOME_TAGS,
    ],
);

static ELEMENTS: &[Field] = &[needed("elements", Kind::List(&PART, 1, Most::ANY), "The parts.")];
static BETWEEN_TEXTS: &[Field] = &[
    needed("begin", Kind::TEXT, "Before it."),
    needed("content", Kind::Either(&ANY_PART), "What it looks like."),
    needed("end", Kind::TEXT, "After it."),
];
static ANY_TAG: Kind = Kind::Object(&PLAIN_TAG);
static SOME_TAGS: &[Field] = &[
    needed("tags", Kind::List(&ANY_TAG, 1, Most::ANY), "Any of these."),
    with_default("at_least_one", Kind::Flag, "false", "Whether there has to be one."),
    with_default("stop_after_first", Kind::Flag, "false", "Whether the answer ends with the first."),
];
static EXCLUDES: &[Field] = &[optional(
    "excludes",
    Kind::List(&Kind::TEXT, 0, Most::Is(0)),
    "Texts that the free text must not hold: none can be given yet.",
)];
