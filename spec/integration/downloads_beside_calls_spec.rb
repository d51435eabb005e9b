# frozen_string_literal: true

require "fileutils"
require "timeout"
require "tmpdir"

# Models that come from the hub, however long that takes, keep none that are there from computing.
RSpec.describe "Downloads beside calls" do
  let(:server) { HubServer.new }
  let(:home) { Dir.mktmpdir("hub") }
  let(:folder) { TinyModels.path("bert-sentence") }

  around do |example|
    saved = %w[HF_ENDPOINT HF_HUB_OFFLINE TRANSFORMERS_OFFLINE].to_h { |name| [name, ENV.delete(name)] }
    ENV["HF_ENDPOINT"] = server.url
    threads = Candle.num_threads
    Candle.num_threads = 1
    Timeout.timeout(60) { example.run }
  ensure
    Candle.num_threads = threads
    saved.each { |name, value| ENV[name] = value }
    server.stop
    FileUtils.rm_rf(home)
  end

  it "leave them the threads" do
    Dir.glob("**/*.*", base: folder).select { |name| File.file?(File.join(folder, name)) }.each do |name|
      server.add("acme/far", name, File.binread(File.join(folder, name)), large: name.end_with?(".safetensors"))
    end
    server.fault("/", site: :store, times: 99) { |response| response.stall_at = 1 }
    near = Candle::EmbeddingModel.from_pretrained(folder, device: "cpu")
    loading = Thread.new { Candle::EmbeddingModel.from_pretrained("acme/far", device: "cpu", cache_dir: home) }
    sleep(0.01) until Dir.glob(File.join(home, "**", "*.incomplete")).any?
    expect(seconds { near.embed("fox") }).to be < 2
  ensure
    loading&.kill&.join
  end
end
