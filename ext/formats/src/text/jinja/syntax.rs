//! A template as a tree.

use std::sync::Arc;

#[derive(Debug)]
pub struct Template {
    pub body: Vec<Statement>,
    /// Macros and the bodies of call blocks, which statements know by their place here.
    pub macros: Vec<Macro>,
}

#[derive(Debug)]
pub struct Statement {
    pub line: usize,
    pub kind: StatementKind,
}

#[derive(Debug)]
pub enum StatementKind {
    Text(Arc<str>),
    Print(Expression),
    For(Box<For>),
    /// Conditions with their bodies; the last body may have none.
    If(Vec<(Expression, Vec<Statement>)>, Vec<Statement>),
    Set(Target, Expression),
    SetBlock(Target, Vec<Filter>, Vec<Statement>),
    With(Vec<(Target, Expression)>, Vec<Statement>),
    Macro(usize),
    Call(usize, Expression),
    FilterBlock(Vec<Filter>, Vec<Statement>),
    /// A named block: just its body.
    Body(Vec<Statement>),
    Break,
    Continue,
}

#[derive(Debug)]
pub struct For {
    pub target: Target,
    pub items: Expression,
    pub condition: Option<Expression>,
    /// Whether `loop(items)` runs it again.
    pub recursive: bool,
    pub body: Vec<Statement>,
    pub otherwise: Vec<Statement>,
}

#[derive(Debug)]
pub struct Macro {
    pub name: Arc<str>,
    pub parameters: Vec<(Arc<str>, Option<Expression>)>,
    pub body: Vec<Statement>,
}

#[derive(Debug)]
pub enum Target {
    Name(Arc<str>),
    Attribute(Arc<str>, Arc<str>),
    Tuple(Vec<Target>),
}

#[derive(Debug)]
pub struct Filter {
    pub name: Arc<str>,
    pub arguments: Arguments,
}

#[derive(Debug, Default)]
pub struct Arguments {
    pub positional: Vec<Expression>,
    pub named: Vec<(Arc<str>, Expression)>,
}

/// An expression, with how deep the tree below it is.
#[derive(Debug)]
pub struct Expression {
    pub kind: Box<ExpressionKind>,
    pub depth: usize,
}

#[derive(Debug)]
pub enum ExpressionKind {
    Literal(Literal),
    Name(Arc<str>),
    List(Vec<Expression>),
    Tuple(Vec<Expression>),
    Dict(Vec<(Expression, Expression)>),
    Not(Expression),
    Negative(Expression),
    Positive(Expression),
    And(Expression, Expression),
    Or(Expression, Expression),
    Arithmetic(Operator, Expression, Expression),
    Concatenation(Vec<Expression>),
    Comparison(Expression, Vec<(Comparator, Expression)>),
    Condition(Expression, Expression, Option<Expression>),
    Attribute(Expression, Arc<str>),
    Item(Expression, Expression),
    Slice(Expression, [Option<Expression>; 3]),
    Call(Expression, Arguments),
    Filter(Expression, Filter),
    Test(Expression, Filter),
}

#[derive(Clone, Debug)]
pub enum Literal {
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(Arc<str>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operator {
    Add,
    Subtract,
    Multiply,
    Divide,
    FloorDivide,
    Modulo,
    Power,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparator {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    In,
    NotIn,
}
