# frozen_string_literal: true

require "json"
require "rubygems/installer"

RSpec.describe Candle::ModelGems do
  id = "acme/tiny"
  card = "---\nlicense: apache-2.0\n---\n# Tiny\n"

  def pack(*arguments)
    before = [$stdout, $stderr]
    $stdout = StringIO.new
    $stderr = StringIO.new
    status = Candle::CLI.run(["pack", *arguments])
    [status, $stdout.string.lines.map(&:chomp), $stderr.string]
  ensure
    $stdout, $stderr = before
  end

  def install(paths)
    paths.each { |path| Gem::Installer.at(path, install_dir: @gems, force: true, wrappers: false).install }
  end

  # Without Bundler, which would hide gems that are not of this project.
  def child(script)
    output, error, = run_ruby("begin\n#{script}\nrescue Candle::Error => e\nputs \"\#{e.class}: \#{e.message}\"\nend",
                              { "RUBYOPT" => nil, "BUNDLE_GEMFILE" => nil, "GEM_HOME" => @gems, "GEM_PATH" => @gems })
    error.empty? ? output.chomp : raise(error)
  end

  def embed_in_child(id = "acme/tiny", **options)
    child("model = Candle::EmbeddingModel.from_pretrained(#{id.inspect}, **#{options.inspect})\n" \
          "puts JSON.generate(model.embed('fox'))")
  end

  around do |example|
    LoneHub.open do |server, home|
      @server = server
      LoneHub.serve(server, id, "bert-sentence-dense")
      server.add(id, "README.md", card)
      server.add(id, "LICENSE", "Use it.")
      @gems = File.join(home, "gems")
      example.run
    end
  end

  let(:vector) { JSON.generate(Candle::EmbeddingModel.from_pretrained(id).embed("fox")) }

  # The hub is gone, and so is what was fetched from it.
  def cut_off
    @server.stop
    FileUtils.rm_rf(ENV.fetch("HF_HOME"))
    ENV["HF_HUB_OFFLINE"] = "1"
  end

  it "builds a gem that from_pretrained finds without a hub" do
    vector
    status, built, = pack(id)
    expect([status, built]).to eq([0, [File.expand_path("red-candle-model-acme-tiny-1.0.0.gem")]])
    cut_off
    expect(embed_in_child).to start_with("Candle::OfflineError")
    install(built)
    expect(embed_in_child).to eq(vector)
    expect(child("p Candle::Tokenizer.from_pretrained('acme/tiny').encode('fox').size")).to match(/\A\d+\z/)
    expect(child("p Candle::ModelKind.of('acme/tiny')")).to eq(":embedding")
    expect(embed_in_child(revision: "main")).to eq(vector)
    expect(embed_in_child(revision: "v1.0")).to start_with("Candle::OfflineError")
  end

  it "is locked and installed by Bundler" do
    vector
    pack(id, "--output", "vendor/cache")
    cut_off
    # Nobody answers there.
    File.write("Gemfile", %(source "http://127.0.0.1:9"\ngem "red-candle-model-acme-tiny"\n))
    environment = { "RUBYOPT" => nil, "BUNDLE_GEMFILE" => File.expand_path("Gemfile"), "BUNDLE_PATH" => @gems }
    said, status = Open3.capture2e(environment, "bundle", "install", "--local")
    expect(status).to be_success, said
    expect(File.read("Gemfile.lock")).to include("red-candle-model-acme-tiny (1.0.0)")
    script = "puts JSON.generate(Candle::EmbeddingModel.from_pretrained('acme/tiny').embed('fox'))"
    output, = Open3.capture2e(environment, "bundle", "exec", "ruby", "-I#{ChildRuby::LIB}", "-rcandle", "-e", script)
    expect(output.chomp).to eq(vector)
  end

  it "has the license of the checkpoint inside" do
    spec = Gem::Package.new(pack(id)[1].first).spec
    expect(spec.licenses).to eq(["Apache-2.0"])
    expect(spec.files).to include("LICENSE", "README.md", "models.lock", "model/config.json")
    expect(spec.metadata).to include("red_candle_model" => id, "red_candle_commit" => @server.commit(id))
    @server.add("acme/bare", "config.json", "{}")
    @server.add("acme/bare", "model.safetensors", "x")
    _, built, said = pack("acme/bare")
    expect(said).to include("says nothing of its license")
    expect(Gem::Package.new(built.first).spec.licenses).to eq(["Nonstandard"])
  end

  it "is cut into pieces where a gem would be too large" do
    vector
    status, built, = pack(id, "--limit", "20KB")
    expect(status).to eq(0)
    expect(built.size).to be > 2
    expect(built.map { |path| File.size(path) }).to all(be < 25_000)
    spec = Gem::Package.new(built.last).spec
    expect(spec.dependencies.map(&:name)).to eq(built[0..-2].map { |path| File.basename(path, "-1.0.0.gem") })
    expect(Gem::Package.new(built.first).spec.files).to include("LICENSE", "piece")
    cut_off
    install(built.drop(1))
    expect(embed_in_child).to match(/ModelNotFoundError: .* needs the gem red-candle-model-acme-tiny-part1 1.0.0/)
    install(built.take(1))
    2.times { expect(embed_in_child).to eq(vector) }
    expect(Dir.children(described_class.cache_directory)).to eq(["red-candle-model-acme-tiny-1.0.0"])
    weights = File.join(described_class.cache_directory, "red-candle-model-acme-tiny-1.0.0/model/model.safetensors")
    File.binwrite(weights, File.binread(weights).succ)
    expect(embed_in_child).to match(/CorruptModelError: .*model.safetensors/)
  end

  it "writes nothing outside of its place, whatever a list of pieces says" do
    install(pack(id, "--limit", "20KB")[1])
    list = File.join(@gems, "gems/red-candle-model-acme-tiny-1.0.0/pieces.json")
    gem = JSON.parse(File.read(list)).values.first.first
    cut_off
    cache = described_class.cache_directory
    find = "p Candle::ModelGems.find('acme/tiny')"
    outside = ["../../../escaped", "../escaped", File.join(@gems, "escaped"), "a/../../../escaped", "a//b", "", ".",
               "a\\..\\escaped", "c:escaped", "a\u0000b"]
    outside.each do |name|
      File.write(list, JSON.generate({ name => [gem] }))
      expect(child(find)).to match(/\ACandle::CorruptModelError: pieces.json of .* is not the name of a file within/)
    end
    expect(Dir.glob("{#{@gems},#{File.dirname(cache, 2)}}/**/escaped*")).to be_empty
    { "[]" => /an object/, "{" => /not valid JSON/, '{"a": 5}' => /an object/, '{"a": []}' => /an object/,
      '{"a": [5]}' => /an object/, "7" => /an object/, "\xFF" => /not valid JSON/ }.each do |text, message|
      File.binwrite(list, text)
      expect(child(find)).to match(/\ACandle::CorruptModelError: pieces.json .*#{message.source}.*gem install/)
    end
    # A piece replaces no file of the gem, though a link to it stood in its place.
    before = File.read(File.join(@gems, "gems/red-candle-model-acme-tiny-1.0.0/model/config.json"))
    File.write(list, JSON.generate({ "config.json" => [gem], "config.json/x" => [gem] }))
    expect(child(find)).to start_with("Candle::CorruptModelError")
    expect(File.read(File.join(@gems, "gems/red-candle-model-acme-tiny-1.0.0/model/config.json"))).to eq(before)
    expect(Dir.exist?(cache) ? Dir.children(cache) : []).to be_empty
  end

  it "names a file of the gem with other bytes" do
    install(pack(id)[1])
    path = File.join(@gems, "gems/red-candle-model-acme-tiny-1.0.0/model/tokenizer.json")
    File.write(path, File.read(path).sub("fox", "dog"))
    cut_off
    expect(embed_in_child).to match(%r{CorruptModelError: \S+acme-tiny-1.0.0/model/tokenizer.json is not the tokenizer})
  end

  it "serves a lock, if its bytes are the locked ones" do
    Candle::ModelsLock.read.tap { |lock| lock.add(id) }.write
    vector
    install(pack(id)[1])
    cut_off
    use = "Candle.models_lock = 'models.lock'; puts JSON.generate(Candle::EmbeddingModel.from_pretrained('acme/tiny')" \
          ".embed('fox'))"
    expect(child(use)).to eq(vector)
    expect(child("puts Candle::ModelsLock.read.pull")).to include("gems/red-candle-model-acme-tiny-1.0.0/model/config")
    expect(child("puts Candle::ModelsLock.read('other.lock').add('acme/tiny')['commit']")).to eq(@server.commit(id))
    list = JSON.parse(File.read("models.lock"))
    list["models"].first["files"].each { |file| file["sha256"] = "0" * 64 }
    File.write("models.lock", JSON.generate(list))
    expect(child(use)).to start_with("Candle::CorruptModelError")
  end

  it "packs a directory under an id" do
    FileUtils.cp_r(TinyModels.path("bert-sentence"), "mine")
    expect(pack("mine")).to match([2, [], /--id/])
    expect(pack("mine", "--id", "me/mine", "--limit", "0")).to match([2, [], /--limit/])
    status, built, = pack("mine", "--id", "me/mine", "--output", "out", "--license", "MIT", "--gem-version", "2.1.0")
    expect([status, built]).to eq([0, [File.expand_path("out/red-candle-model-me-mine-2.1.0.gem")]])
    expect(Gem::Package.new(built.first).spec.licenses).to eq(["MIT"])
    install(built)
    cut_off
    expect(JSON.parse(embed_in_child("me/mine")).size).to eq(32)
    FileUtils.mkdir("empty")
    expect(pack("empty", "--id", "a/b").first).to eq(3)
  end
end
