# frozen_string_literal: true

require "json"

RSpec.describe Candle::ModelsLock do
  id = "acme/tiny"

  # Runs a command line in this process.
  def cli(*arguments)
    before = [$stdout, $stderr]
    $stdout = StringIO.new
    $stderr = StringIO.new
    status = Candle::CLI.run(arguments)
    [status, $stdout.string, $stderr.string]
  ensure
    $stdout, $stderr = before
  end

  def load(source = "acme/tiny", **options)
    Candle::EmbeddingModel.from_pretrained(source, device: "cpu", **options)
  end

  def cached(name)
    Dir.glob(File.join(ENV.fetch("HF_HOME"), "hub/models--acme--tiny/snapshots/*/#{name}")).first
  end

  # Changes one byte and nothing else of a file.
  def tamper(path)
    path = File.realpath(path)
    bytes = File.binread(path)
    bytes.setbyte(bytes.bytesize / 2, bytes.getbyte(bytes.bytesize / 2) ^ 1)
    File.binwrite(path, bytes)
  end

  around do |example|
    LoneHub.open do |server, home|
      @server = server
      @home = home
      LoneHub.serve(server, id, "bert-sentence-dense")
      example.run
    ensure
      Candle.models_lock = nil
    end
  end

  let(:entry) { JSON.parse(File.read("models.lock")).fetch("models").first }

  describe "red-candle lock" do
    it "writes id, commit, files, sizes and hashes" do
      status, output, = cli("lock", id)
      expect([status, output]).to match([0, %r{\Aacme/tiny at \h{40}: \d+ files, }])
      expect(entry).to include("id" => id, "revision" => "main", "commit" => @server.commit(id))
      weights = entry["files"].find { |file| file["name"] == "model.safetensors" }
      bytes = File.binread(TinyModels.path("bert-sentence-dense/model.safetensors"))
      expect(weights).to eq("name" => "model.safetensors", "size" => bytes.bytesize,
                            "sha256" => Digest::SHA256.hexdigest(bytes))
      expect(entry["files"].map { |file| file["name"] }).to include("config.json", "2_Dense/model.safetensors")
    end

    it "adds to what is locked, and brings it up to date" do
      cli("lock", id)
      FileUtils.cp_r(TinyModels.path("bert-sentence"), "local")
      expect(cli("lock", "./local").first).to eq(0)
      old = @server.commit(id)
      @server.move(id)
      expect(cli("lock", "--json").first).to eq(0)
      models = JSON.parse(File.read("models.lock")).fetch("models")
      expect(models.map { |model| model["id"] }).to eq([File.expand_path("local"), id])
      expect(models.map { |model| model["path"] }).to eq(["local", nil])
      expect(models.last["commit"]).to eq(@server.commit(id)).and(satisfy { |commit| commit != old })
    end

    it "says what to do when there is nothing to lock" do
      expect(cli("lock")).to match([2, "", /nothing is locked in .*models.lock yet/])
      expect(cli("lock", "acme/none")).to match([3, "", %r{there is no model acme/none}])
      File.write("models.lock", "[]")
      expect(cli("lock", id)).to match([1, "", /models.lock is not a list of locked models/])
    end
  end

  describe "Candle.models_lock=" do
    before { cli("lock", id) }

    it "loads the locked commit, whatever the branch stands for, and asks nobody when the cache has it" do
      vector = load.embed("fox")
      Candle.models_lock = "models.lock"
      expect(Candle.models_lock).to eq(File.expand_path("models.lock"))
      @server.move(id)
      @server.requests.clear
      expect(load.embed("fox")).to eq(vector)
      expect(load(revision: "main").embed("fox")).to eq(vector)
      expect(Candle::Tokenizer.from_pretrained(id).encode("fox")).not_to be_empty
      expect(@server.requests).to be_empty
    end

    it "names the file with other bytes" do
      Candle.models_lock = "models.lock"
      %w[config.json model.safetensors tokenizer.json 2_Dense/model.safetensors].each do |name|
        path = cached(name)
        tamper(path)
        expect { load }.to raise_error(Candle::CorruptModelError, /#{Regexp.escape(name)} .*sha256/), name
        tamper(path)
      end
      expect(load.dimension).to be_positive
      File.write(File.realpath(cached("config.json")), "{}")
      expect { load }.to raise_error(Candle::CorruptModelError, /config.json.*of 2 bytes/)
    end

    it "names the file that the hub serves with other bytes" do
      FileUtils.rm_rf(ENV.fetch("HF_HOME"))
      @server.add(id, "modules.json", "[]")
      Candle.models_lock = "models.lock"
      expect { load }.to raise_error(Candle::CorruptModelError, /modules.json/)
    end

    it "loads nothing that is not listed, and no file that is not" do
      Candle.models_lock = "models.lock"
      directory = TinyModels.path("bert-sentence")
      expect do
        load(directory)
      end.to raise_error(Candle::ModelNotFoundError, /models.lock does not name .*red-candle lock/)
      expect { load("acme/other") }.to raise_error(Candle::ModelNotFoundError, %r{acme/other})
      expect { load(revision: "v1.0") }.to raise_error(Candle::ModelNotFoundError, /--revision v1.0/)
      Candle.models_lock = nil
      expect(load(directory).dimension).to eq(32)

      list = JSON.parse(File.read("models.lock"))
      list["models"].first["files"].reject! { |file| file["name"] == "modules.json" }
      File.write("models.lock", JSON.generate(list))
      Candle.models_lock = "models.lock"
      plain = load.model_info.fetch(:files)
      expect(plain.grep(/2_Dense/)).to be_empty
    end

    it "locks directories, wherever the program runs" do
      FileUtils.cp_r(TinyModels.path("bert-sentence"), "local")
      cli("lock", "local")
      Candle.models_lock = "models.lock"
      Dir.chdir("/") { expect(load(File.join(@home, "local")).dimension).to eq(32) }
      File.write("local/vocab.txt", "more")
      tamper("local/model.safetensors")
      expect { load("local") }.to raise_error(Candle::CorruptModelError, %r{local/model.safetensors})
      File.delete("local/model.safetensors")
      expect { load("local") }.to raise_error(Candle::ModelNotFoundError, /model.safetensors of local is missing/)
    end

    it "locks a GGUF file" do
      FileUtils.cp(Dir[File.join(TinyModels.path("gguf-decoders/llama"), "*.gguf")].first, "tiny.gguf")
      cli("lock", "tiny.gguf")
      Candle.models_lock = "models.lock"
      expect(Candle::LLM.from_pretrained("tiny.gguf", device: "cpu").model_info[:files].size).to eq(1)
      tamper("tiny.gguf")
      expect { Candle::LLM.from_pretrained("tiny.gguf") }.to raise_error(Candle::CorruptModelError, /tiny.gguf/)
    end

    it "refuses what isn't a lock and keeps the one in force" do
      Candle.models_lock = "models.lock"
      expect { Candle.models_lock = "nowhere.lock" }.to raise_error(Candle::ModelNotFoundError, /nowhere.lock/)
      File.write("broken.lock", "{")
      expect { Candle.models_lock = "broken.lock" }.to raise_error(Candle::CorruptModelError, /broken.lock/)
      expect(Candle.models_lock).to eq(File.expand_path("models.lock"))
      expect { load("acme/other") }.to raise_error(Candle::ModelNotFoundError, /models.lock/)
    end
  end

  describe "red-candle pull --locked" do
    before { cli("lock", id) }

    it "fetches the locked files of the locked commit alone" do
      FileUtils.rm_rf(ENV.fetch("HF_HOME"))
      expect(cli("pull", "--locked")).to match([0, %r{acme/tiny: \d+ files as locked}, ""])
      ENV["HF_HUB_OFFLINE"] = "1"
      Candle.models_lock = "models.lock"
      expect(load.dimension).to be_positive
    end

    it "fails on other bytes, with the file's name" do
      tamper(cached("2_Dense/model.safetensors"))
      expect(cli("pull", "--locked")).to match([1, "", %r{2_Dense/model.safetensors}])
    end

    it "takes an id or the lock" do
      expect(cli("pull")).to match([2, "", /--locked/])
      expect(cli("pull", id, "--locked")).to match([2, "", /without one/])
      expect(cli("pull", "--locked", "--file", "none.lock")).to match([3, "", /none.lock names no model/])
    end
  end
end
