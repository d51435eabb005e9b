use std::time::{Duration, Instant};

use serde_json::{json, Map};

use super::*;
use base::runtime::stack;

fn rendered(source: &str) -> Outcome<String> {
    let work = || render(&parse(source)?, &Map::new(), &CancelToken::new());
    stack::roomy(work).unwrap()
}

fn evaluated(expression: &str) -> String {
    rendered(&format!("{{{{ {expression} }}}}")).unwrap()
}

/// What the template is stopped by, and within what time.
#[track_caller]
fn stopped(source: &str) {
    let started = Instant::now();
    let failure = rendered(source).unwrap_err();
    assert!(!matches!(failure.cause, Cause::Refused(_)), "{failure}");
    let limit = Duration::from_secs(20);
    assert!(started.elapsed() < limit, "{:?}", started.elapsed());
}

#[test]
fn python_methods_that_templates_use() {
    assert_eq!(
        evaluated("'<think>a</think>b'.split('</think>')[-1].lstrip('\\n')"),
        "b"
    );
    assert_eq!(evaluated("'a.b.c'.rsplit('.', 1)"), "['a.b', 'c']");
    assert_eq!(evaluated("' a  b c '.split()"), "['a', 'b', 'c']");
    assert_eq!(evaluated("' a  b c '.split(none, 1)"), "['a', 'b c ']");
    assert_eq!(evaluated("' a  b c '.rsplit(none, 1)"), "[' a  b', 'c']");
    assert_eq!(evaluated("'a=b=c'.partition('=')[2]"), "b=c");
    assert_eq!(evaluated("'a=b=c'.rpartition('=')[0]"), "a=b");
    assert_eq!(evaluated("'unhappy'.removeprefix('un')"), "happy");
    assert_eq!(evaluated("{'a': 1}.get('b', 2)"), "2");
    assert_eq!(
        evaluated("'text' is iterable and 'text' is sequence"),
        "True"
    );
    assert_eq!(evaluated("none is iterable"), "False");
    assert_eq!(evaluated("'a\\nb'.splitlines()"), "['a', 'b']");
    assert_eq!(
        evaluated("'{} {:>4} {x!r}'.format('a', 'c', x='b')"),
        "a    c 'b'"
    );
    assert_eq!(evaluated("'%s=%03d %.2f' % ('a', 7, 0.5)"), "a=007 0.50");
}

#[test]
fn operators_have_pythons_meaning() {
    for (expression, result) in [
        ("-7 // 2", "-4"),
        ("-7 % 3", "2"),
        ("7 / 2", "3.5"),
        ("2 ** 10", "1024"),
        ("1 + 2 * 3 - -1", "8"),
        ("'a' ~ 1 ~ none", "a1None"),
        ("'ab' * 2", "abab"),
        ("[1] + [2]", "[1, 2]"),
        ("1 < 2 < 3", "True"),
        ("3 in [1, 2] or 'b' not in 'abc'", "False"),
        ("not 1 == 2", "True"),
        ("'héllo'[1:-1]", "éll"),
        ("[1, 2, 3, 4][::-2]", "[4, 2]"),
        ("'yes' if 0 else 'no'", "no"),
        ("('yes' if 0) is defined", "False"),
        ("{'a': (1,), 2: 'it\\'s'}", "{'a': (1,), 2: \"it's\"}"),
        ("-1|abs", "1"),
        ("1.0 == 1 and true == 1", "True"),
        ("nothing", ""),
        ("'a' 'b'", "ab"),
        ("0x1f + 1_000", "1031"),
        ("'\\u00e9\\x41\\n' == 'éA\n'", "True"),
    ] {
        assert_eq!(evaluated(expression), result, "{expression}");
    }
}

#[test]
fn filters_and_tests_have_jinjas_meaning() {
    for (expression, result) in [
        ("[3, 1, 2]|sort|join('-')", "1-2-3"),
        ("['b', 'A']|sort", "['A', 'b']"),
        ("[{'a': 2}, {'a': 1}]|map(attribute='a')|list", "[2, 1]"),
        (
            "[{'a': 2}, {'b': 1}]|selectattr('a', 'defined')|list",
            "[{'a': 2}]",
        ),
        ("[1, 2, 3]|reject('odd')|first", "2"),
        ("none|selectattr('a')|list ~ none|map('upper')|list", "[][]"),
        ("['a', 'b']|map('upper')|list", "['A', 'B']"),
        ("{'b': 1, 'a': 2}|dictsort", "[('a', 2), ('b', 1)]"),
        ("{'b': 1}|items|list", "[('b', 1)]"),
        ("'a\n\nb'|indent(2)", "a\n\n  b"),
        ("'a b'|title ~ 'aB'|capitalize", "A BAb"),
        ("''|default('x', true) ~ x|default('y')", "xy"),
        ("[1, 1, 2]|unique|list|length", "2"),
        ("[1, 2, 3]|batch(2)|list", "[[1, 2], [3]]"),
        ("[1, 2, 3]|slice(2)|list", "[[1, 2], [3]]"),
        ("'3.7'|int + 2.5|round|int", "5"),
        (
            "{'a': [1, none]}|tojson(indent=1)",
            "{\n \"a\": [\n  1,\n  null\n ]\n}",
        ),
        ("7 is divisibleby 7 and 3 is odd", "True"),
        ("'a' is in ['a'] and 'b' is not in 'a'", "True"),
        ("[]|first is undefined", "True"),
        ("'x'|center(3) ~ '|'", " x |"),
        ("[1, 2]|sum + [3, 4]|max", "7"),
        ("'a' is string and 1 is number and {} is mapping", "True"),
    ] {
        assert_eq!(evaluated(expression), result, "{expression}");
    }
}

#[test]
fn statements_have_jinjas_scopes() {
    for (source, result) in [
        ("{% set x = 1 %}{% for i in [1, 2] %}{% set x = i %}{% endfor %}{{ x }}", "1"),
        ("{% set n = namespace(x=0) %}{% for i in [1, 2] %}{% set n.x = n.x + i %}{% endfor %}{{ n.x }}", "3"),
        ("{% if true %}{% set x = 2 %}{% endif %}{{ x }}", "2"),
        ("{% for a, b in {'k': 1}.items() %}{{ a }}{{ b }}{% else %}none{% endfor %}", "k1"),
        ("{% for i in [] %}{% else %}none{% endfor %}", "none"),
        ("{% for i in range(9) if i is even %}{% if i == 6 %}{% break %}{% endif %}{{ i }}{{ loop.index }} {% endfor %}", "01 22 43 "),
        ("{% for i in [1, 2, 3] %}{% if i == 2 %}{% continue %}{% endif %}{{ i }}{% endfor %}", "13"),
        ("{% for i in 'ab' %}{{ loop.previtem }}{{ loop.nextitem }}{{ loop.last }}{% endfor %}", "bFalseaTrue"),
        ("{% macro m(a, b='x') %}[{{ a }}{{ b }}]{% endmacro %}{{ m(1) }}{{ m(b=2, a=3) }}", "[1x][32]"),
        ("{% macro m() %}<{{ caller('c') }}>{% endmacro %}{% call(x) m() %}{{ x }}{% endcall %}", "<c>"),
        ("{% set x %}a{{ 1 }}{% endset %}{{ x|upper }}", "A1"),
        ("{% filter upper|trim %} a {% endfilter %}", "A"),
        (
            "{% for n in [[1, [2, [3]]]] recursive %}{% if n is sequence %}({{ loop(n) }}){% else %}{{ n }}@{{ loop.depth }}{% endif %}{% endfor %}",
            "(1@2(2@3(3@4)))",
        ),
        ("{% with a = 1, b = 2 %}{{ a + b }}{% endwith %}{{ a }}", "3"),
        ("{% raw %}{{ x }}{% endraw %}{# note #}!", "{{ x }}!"),
        ("a  {%- if true -%}  b  {%- endif %} c", "ab c"),
        ("{{ 'a' }}\n{{ 'b' }}\n", "a\nb"),
        ("  {% if true %}\n  x\n  {% endif %}\ny", "  x\ny"),
        ("  {%+ if true %}x{% endif +%}\ny", "  x\ny"),
    ] {
        assert_eq!(rendered(source).unwrap(), result, "{source}");
    }
}

#[test]
fn deep_programs_are_refused() {
    let many = 20_000;
    for source in [
        format!("{{{{ {} 1 }}}}", "not ".repeat(many)),
        format!("{{{{ {} 1 }}}}", "-".repeat(many)),
        format!("{{{{ 1{} }}}}", " + 1".repeat(many)),
        format!("{{{{ 1{} }}}}", "|abs".repeat(many)),
        format!("{{{{ x{} }}}}", ".a".repeat(many)),
        format!("{{{{ x{} }}}}", "[0]".repeat(many)),
        format!("{{{{ x{} }}}}", "()".repeat(many)),
        format!("{{{{ {}1{} }}}}", "(".repeat(many), ")".repeat(many)),
        format!("{{{{ {}1{} }}}}", "[".repeat(many), "]".repeat(many)),
        format!("{{{{ 1{} }}}}", " if 1 else 1".repeat(many)),
        format!("{{{{ 1{} }}}}", " and 1".repeat(many)),
        format!("{{{{ 1{} }}}}", " is odd".repeat(many)),
        "{% if 1 %}".repeat(many),
        "{% for a in b %}".repeat(many),
        "{% set x %}".repeat(many),
        format!("{{% set {}a = 1 %}}", "(".repeat(many)),
    ] {
        assert!(rendered(&source).is_err(), "{}", &source[..40]);
    }
    let long = format!("{{% if 0 %}}{}b{{% endif %}}", "{% elif 0 %}a".repeat(many));
    assert_eq!(rendered(&long).unwrap(), "");
    assert!(rendered(&"x".repeat(2 << 20)).is_err());
}

#[test]
fn values_that_grow_without_end_are_stopped() {
    let doubling = |start: &str, step: &str| {
        format!(
            "{{% set n = namespace(s={start}) %}}{{% for i in range(90000) %}}{{% set n.s = {step} %}}{{% endfor %}}"
        )
    };
    stopped(&doubling("'ab'", "n.s + n.s"));
    stopped(&doubling("'ab'", "n.s ~ n.s"));
    stopped(&doubling("'ab'", "n.s * 2"));
    stopped(&doubling("[1, 2]", "n.s + n.s"));
    stopped(&doubling("[1]", "[n.s]"));
    stopped(&doubling("{}", "{'a': n.s}"));
    stopped(&doubling("'a'", "n.s|replace('', 'ab')"));
    stopped(&doubling("'a'", "n.s|indent(1000, true)"));
    let tree = "{% set n = namespace(s=[1]) %}{% for i in range(60) %}{% set n.s = [n.s, n.s] %}{% endfor %}";
    for use_of_it in [
        "n.s",
        "n.s|tojson",
        "n.s == n.s",
        "n.s ~ ''",
        "n.s|string|length",
    ] {
        stopped(&format!("{tree}{{{{ {use_of_it} }}}}"));
    }
    stopped("{% set n = namespace() %}{% set n.s = n %}{{ n }}");
    stopped("{% set n = namespace() %}{% set n.s = [n] %}{{ n }}");
    stopped("{% for a in range(99999) %}{{ 'x' * 99999 }}{% endfor %}");
    stopped("{% for a in [1] recursive %}{{ loop([1]) }}{% endfor %}");
    stopped("{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}");
    stopped("{% macro a(f) %}{{ f(f) }}{{ f(f) }}{% endmacro %}{{ a(a) }}");
}

#[test]
fn numbers_that_decide_over_memory_are_refused() {
    for expression in [
        "'x'|indent(9999999999)",
        "'x\ny'|indent(9999999999)",
        "'x'|center(9999999999)",
        "[1]|slice(9999999999)|list",
        "[1]|batch(9999999999, 0)|list",
        "'%1000000000d'|format(1)",
        "'%.1000000000f'|format(1)",
        "'{:1000000000}'.format(1)",
        "'x'.ljust(9999999999)",
        "'x'.zfill(9999999999)",
        "'x' * 9999999999",
        "[1] * 9999999999",
        "range(9999999999)",
        "range(-9223372036854775807, 9223372036854775807)",
        "9223372036854775807 + 1",
        "10 ** 100",
        "1 // 0",
        "-9223372036854775807 * 3",
        "{}|tojson(indent=9999999999)",
        "strftime_now('%c' * 5000)",
    ] {
        stopped(&format!("{{{{ {expression} }}}}"));
    }
    assert_eq!(evaluated("1|round(9999999999)"), "1");
    assert_eq!(
        evaluated("'abc'[9223372036854775807:][:-9223372036854775807]"),
        ""
    );
}

#[test]
fn an_interrupt_ends_a_rendering_at_once() {
    let source =
        "{% for a in range(9999) %}{% for b in range(9999) %}{{ a * b }}{% endfor %}{% endfor %}";
    let template = parse(source).unwrap();
    let cancel = CancelToken::new();
    std::thread::scope(|scope| {
        let work = || stack::roomy(|| render(&template, &Map::new(), &cancel)).unwrap();
        let thread = scope.spawn(work);
        std::thread::sleep(Duration::from_millis(50));
        let cancelled = Instant::now();
        cancel.cancel();
        let failure = thread.join().unwrap().unwrap_err();
        assert_eq!(failure.cause, Cause::Interrupted);
        assert!(cancelled.elapsed() < Duration::from_millis(150));
    });
}

#[test]
fn values_of_the_caller_are_seen_whole() {
    let variables = json!({ "deep": [[{"a": [1.5, "x", null, true]}]], "n": -3 });
    let template = parse("{{ deep }}{{ n }}{{ deep[0][0]['a'][1] }}").unwrap();
    let text = render(
        &template,
        variables.as_object().unwrap(),
        &CancelToken::new(),
    );
    assert_eq!(text.unwrap(), "[[{'a': [1.5, 'x', None, True]}]]-3x");
}

#[test]
fn the_time_is_formatted() {
    let year = evaluated("strftime_now('%Y')");
    assert!(year.len() == 4 && year.parse::<u32>().unwrap() > 2024);
    assert_eq!(evaluated("strftime_now('')"), "");
}
