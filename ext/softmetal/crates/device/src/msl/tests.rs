use super::translate;

fn text(source: &str) -> String {
    let translation = translate(source).expect("it translates");
    let name = translation.names().next().expect("a kernel").to_string();
    translation.assemble(&name)
}

fn problem(source: &str) -> String {
    translate(source)
        .err()
        .unwrap_or_else(|| panic!("{source} is translated"))
}

const KERNEL: &str = "kernel void k(device float *x [[buffer(0)]]) { }";

#[test]
fn kernels_become_entries() {
    let cpp = text(
        "kernel void scale(device const float *x [[buffer(3)]], constant uint &n, threadgroup half *t, \
         uint i [[thread_position_in_grid]]) { x[0]; }",
    );
    assert!(
        cpp.contains("static void scale(device const float *x, constant uint &n, half *t, uint i)"),
        "{cpp}"
    );
    // The second buffer has no index of its own and follows the first.
    assert!(
        cpp.contains("host::Call<3, 4, 256, 1792>::run(&scale, p)"),
        "{cpp}"
    );
    assert!(
        cpp.contains("{\"scale\", softmetal_entry_0, 1024,"),
        "{cpp}"
    );
}

#[test]
fn instances_of_templates_have_the_hosts_names() {
    let source = "template <typename T, int N> [[kernel, max_total_threads_per_threadgroup(N * 32)]] \
                  void sum(device T *x [[buffer(0)]]) { } \
                  template [[host_name(\"sum\" \"_f16\")]] [[kernel]] decltype(sum<half, (4)>) sum<half, (4)>;";
    let translation = translate(source).expect("it translates");
    assert_eq!(translation.names().collect::<Vec<_>>(), ["sum_f16"]);
    let cpp = translation.assemble("sum_f16");
    assert!(cpp.contains("run(&sum<half, (4)>, p)"), "{cpp}");
    assert!(
        cpp.contains("constexpr unsigned softmetal_maximum_sum = N * 32;"),
        "{cpp}"
    );
    assert!(
        cpp.contains("{\"sum_f16\", softmetal_entry_0, softmetal_maximum_sum<half, (4)>,"),
        "{cpp}"
    );
}

#[test]
fn constructors_casts_and_literals_become_cpp() {
    for (metal, cpp) in [
        ("float4(1, 2, 3, 4)", "metal::make<float4>(1, 2, 3, 4)"),
        ("vec<half, 4>(x)", "metal::make<vec<half, 4>>(x)"),
        ("y = (half4)x;", "y = metal::cast<half4>{}->*x;"),
        ("static_cast<half>(x)", "metal::convert<half>(x)"),
        ("2.0 + 1e-5 + .5", "2.0f + 1e-5f + .5f"),
        ("0.5h", "((half)0.5f)"),
        ("0x1e + 3 + a.x", "0x1e + 3 + a.x"),
        ("x.template f<float4>()", "x.template f<float4>()"),
    ] {
        let source = format!("{KERNEL} void f() {{ {metal} }}");
        assert!(text(&source).contains(cpp), "{metal}: {}", text(&source));
    }
}

#[test]
fn threadgroup_variables_come_from_the_runtime_and_pointers_stay() {
    let cpp = text(
        "kernel void k(device float *x) { threadgroup float4 a[8][N]; threadgroup float *p = q; }",
    );
    assert!(
        cpp.contains("typedef  float4 softmetal_type_0[8][N];"),
        "{cpp}"
    );
    assert!(
        cpp.contains("auto &a = host::threadgroup_variable<softmetal_type_0>(0);"),
        "{cpp}"
    );
    assert!(cpp.contains(" float *p = q;"), "{cpp}");
}

#[test]
fn function_constants_and_what_follows_from_them_are_variables() {
    let cpp = text(&format!(
        "constant bool has_mask [[function_constant(20)]]; constant bool plain = !has_mask; constant int two = 2; {KERNEL}"
    ));
    assert!(
        cpp.contains("static bool has_mask;") && cpp.contains("static bool plain;"),
        "{cpp}"
    );
    assert!(
        cpp.contains("{\"has_mask\", 20, sizeof(has_mask), &has_mask}"),
        "{cpp}"
    );
    assert!(
        cpp.contains("plain = !has_mask;") && cpp.contains("constant int two = 2;"),
        "{cpp}"
    );
}

#[test]
fn overloads_by_address_space_are_one() {
    let twice = "int f(device int *x) { return x[0]; } int f(constant int *x) { return x[0]; }";
    let cpp = text(&format!("{twice} {KERNEL}"));
    assert_eq!(cpp.matches("int f(").count(), 1, "{cpp}");
    let different = "int f(device int *x) { return x[0]; } int f(constant int *x) { return x[1]; }";
    assert!(problem(&format!("{different} {KERNEL}")).contains("two bodies for int f"));
}

#[test]
fn what_is_not_known_is_reported() {
    for (source, word) in [
        (
            "kernel void k(device float *x [[stage_in]]) { }",
            "stage_in",
        ),
        ("[[visible]] void f() { }", "visible"),
        (
            "kernel void k(texture2d<float> t [[texture(0)]]) { }",
            "texture",
        ),
        ("void f(texture2d<float> t) { }", "texture2d"),
        (
            "[[kernel]] [[early_fragment_tests]] void k() { }",
            "early_fragment_tests",
        ),
        (
            "template [[host_name(\"a\")]] [[kernel]] void k(device float *x);",
            "instance of no template",
        ),
        (
            "template [[host_name(\"a\")]] [[kernel]] decltype(k<int>) k<int>;",
            "no kernel k for a",
        ),
        (
            "kernel void k(device float *x [[buffer(N)]]) { }",
            "N is no index",
        ),
        ("kernel void k(", "( without )"),
        ("constant int a = \"b", "quotation"),
    ] {
        let problem = problem(source);
        assert!(problem.contains(word), "{source}: {problem}");
    }
}
