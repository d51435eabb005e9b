# frozen_string_literal: true

RSpec.describe "architecture" do
  code = %w[lib/**/*.rb ext/**/*.rs ext/**/*.rb rakelib/**/*.{rb,rake} bin/**/* spec/**/*.{rb,py} exe/*
            examples/**/*.rb]

  # Every method with a native name in the library, those that anyone may call returned.
  def native_methods
    modules = [Candle, *Candle.constants.map { |name| Candle.const_get(name) }.grep(Module)]
    modules += modules.flat_map { |owner| owner.constants(false).map { |name| owner.const_get(name) }.grep(Module) }
    modules.uniq.select { |owner| owner.name.to_s.start_with?("Candle") }
           .flat_map { |owner| [owner, owner.singleton_class] }.flat_map do |owner|
      all = owner.instance_methods(false) + owner.private_instance_methods(false)
      all.grep(/\A_[a-z]/).each { |name| yield owner, name }
      owner.instance_methods(false).grep(/\A_[a-z]/).map { |name| "#{owner}##{name}" }
    end
  end

  it "keeps Ruby out of the engine" do
    found = ProjectFiles.lines("ext/{base,kernels,formats,engine}/Cargo.toml",
                               "ext/{base,kernels,formats,engine}/{src,tests}/**/*.rs") do |line|
      line.match?(/\b(magnus|rb[-_]sys)\b/) && !line.strip.start_with?("//")
    end
    expect(found).to be_empty
  end

  it "asks a Boolean by if, not by match" do
    found = ProjectFiles.matching("ext/**/*.rs").select do |path|
      ProjectFiles.read(path).match?(/\bmatch [^{};]*\{\s*(?:true|false) =>/)
    end
    expect(found).to be_empty
  end

  it "calls native methods of no other class" do
    found = ProjectFiles.lines("lib/**/*.rb") do |line, path|
      own = path.delete_suffix(".rb").delete("_").split("/")
      line.scan(/\b([A-Z]\w*)\._[a-z]/).flatten.any? { |receiver| !own.include?(receiver.downcase) }
    end
    expect(found).to be_empty
  end

  it "keeps every native method to its own object" do
    seen = []
    visible = native_methods { |owner, name| seen << "#{owner} #{name}" }
    expect(seen.size).to be > 100
    expect(visible).to be_empty
  end

  it "needs the server for nothing but the server, the worker and their commands" do
    found = ProjectFiles.lines("lib/candle/**/*.rb") do |line, path|
      inside = path.match?(%r{\Alib/candle/(server|worker|cli|runtime/railtie|railtie)})
      !inside && line.match?(/\bServer::/) && !line.strip.start_with?("#")
    end
    expect(found).to be_empty
  end

  it "calls no private method of another object" do
    around = /\b__send__\b|\.send\(|\.instance_variable_get\b/
    found = ProjectFiles.lines("lib/**/*.rb") { |line| line.match?(around) }
    expect(found).to be_empty
  end

  it "defines one class or module per file" do
    several = ProjectFiles.matching("lib/candle/**/*.rb").reject { |path| path.end_with?("errors.rb") }.select do |path|
      ProjectFiles.read(path).scan(/^  (?:class|module) ([A-Z]\w*)/).uniq.size > 1
    end
    expect(several).to be_empty
  end

  it "registers every wrapped Ruby class by the init of its own file" do
    without = ProjectFiles.matching("ext/candle/src/**/*.rs").select do |path|
      source = ProjectFiles.read(path)
      source.match?(/^#\[magnus::wrap/) && !source.match?(/^pub(\(\w+\))? fn init\(/)
    end
    expect(without).to be_empty
  end

  # The collector frees and moves what it does not find: a Ruby object lives on the stack of a call, or in Ruby.
  it "keeps no Ruby object in the fields of native structs" do
    object = /\b(?:Value|R(?:Array|Hash|String|Object|Class|Module)|Proc|Symbol|Exception|Opaque|BoxValue|Lazy)\b/
    place = /^\s*(?:pub(?:\(\w+\))? )?(?:static \w+:[^\n]*|struct \w+[^;{]*(?:\{.*?^\}|;))/m
    kept = ProjectFiles.matching("ext/candle/src/**/*.rs").flat_map do |path|
      ProjectFiles.read(path).scan(place).grep(object).map { |found| "#{path}: #{found.strip.lines.first}" }
    end
    expect(kept).to be_empty
  end

  it "explains every unsafe block" do
    unexplained = ProjectFiles.matching("ext/**/*.rs").flat_map do |path|
      lines = ProjectFiles.read(path).lines
      lines.each_index.filter_map do |index|
        next unless lines[index].match?(/\bunsafe (\{|impl\b)/) && !lines[index].strip.start_with?("//")

        "#{path}:#{index + 1}" unless lines[[index - 8, 0].max..index].join.include?("SAFETY:")
      end
    end
    expect(unexplained).to be_empty
  end

  # Weights are shared by schedulers and by forked children: a lock in them would be taken on every step, and stay taken
  # in a child. What images add to a prompt is the one exception.
  it "keeps locks and run state out of decoders" do
    found = ProjectFiles.lines("ext/engine/src/models/decoder/**/*.rs") do |line, path|
      line.match?(/\b(Mutex|RwLock|RefCell|Cell|Atomic\w+|static mut)\b/) && !path.end_with?("image_embeddings.rs")
    end
    expect(found).to be_empty
  end

  it "lets clippy deny unsafe blocks without a reason in every crate" do
    crates = ProjectFiles.matching("ext/**/Cargo.toml").select { |path| ProjectFiles.read(path).include?("[package]") }
    expect(crates.size).to be > 2
    silent = crates.reject do |path|
      ProjectFiles.read(path).include?("[lints.clippy]\nundocumented_unsafe_blocks = \"deny\"\n")
    end
    expect(silent).to be_empty
  end

  it "has no file of more than 600 lines" do
    long = ProjectFiles.matching(*code).select { |path| ProjectFiles.read(path).lines.size > 600 }
    expect(long).to be_empty
  end

  it "leaves no marker of unfinished work" do
    markers = /\b(TO()DO|FIX()ME|XX()X|HA()CK)\b|\b(todo|unimplemented)!\(/
    expect(ProjectFiles.lines(*code) { |line| line.match?(markers) }).to be_empty
  end

  it "names no directory of a particular machine" do
    homes = %r{/(#{%w[root work home Users].join("|")})/\w{2}}
    found = ProjectFiles.lines(*code, "*.{md,toml,gemspec}", ".github/**/*.yml", ".ci/*") { |line| line.match?(homes) }
    expect(found).to be_empty
  end

  it "has a file with signatures for every Ruby class" do
    inside = ->(root, path) { path.delete_prefix("#{root}/candle/").sub(/\.rbs?\z/, "") }
    expected = ProjectFiles.matching("lib/candle/**/*.rb").map { |path| inside.call("lib", path) }
    expected = expected.grep_v(%r{\Atensor/}) - %w[native version]
    actual = ProjectFiles.matching("sig/candle/**/*.rbs").map { |path| inside.call("sig", path) }
    expect(expected - actual).to be_empty
  end
end
