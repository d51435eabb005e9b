# frozen_string_literal: true

RSpec.describe "What require loads" do
  # The least processor time of some Rubies, in milliseconds, and the files that each has loaded.
  def cost(script)
    figures = "; print Process.clock_gettime(Process::CLOCK_PROCESS_CPUTIME_ID, :float_millisecond), ' ', " \
              "$LOADED_FEATURES.size"
    lib = File.join(ProjectFiles::ROOT, "lib")
    runs = Array.new(5) { IO.popen([{ "RUBYOPT" => nil }, RbConfig.ruby, "-I", lib, "-e", script + figures], &:read) }
    runs.map { |run| run.split.map(&:to_f) }.transpose.map(&:min)
  end

  def printed(script)
    output, errors, status = run_ruby(script)
    expect(status).to be_success, errors
    expect(errors).to be_empty
    output
  end

  it "is little, in files and in time" do
    bare_time, bare_files = cost("nil")
    time, files = cost('require "candle"')
    expect(files - bare_files).to be < 40
    expect(time / bare_time).to be < 1.8
  end

  it "finds every class when it is named" do
    files = ProjectFiles.matching("lib/candle/*.rb", "lib/candle/{files,generation,media,models,recognizers}/*.rb",
                                  "lib/candle/{runtime,structured,support,text,tools}/*.rb")
    names = files.flat_map do |path|
      ProjectFiles.read(path).scan(/^  (?:class|module) ([A-Z]\w*)|^  ([A-Z]\w*[a-z]\w*) = /).flatten.compact
    end
    names -= %w[LogSubscriber Railtie]
    expect(names.size).to be > 80
    names.uniq.each_slice(30) do |some|
      missing = "#{some}.reject { |name| Candle.const_defined?(name) && Candle.const_get(name) }"
      expect(printed("print #{missing}")).to eq("[]")
    end
  end

  it "completes what a native method returns" do
    expect(printed(<<~RUBY)).to eq("[[1, 32], Candle::Tokenizer, true]")
      model = Candle::EmbeddingModel.from_pretrained(#{TinyModels.path("bert-sentence").inspect}, device: "cpu")
      print [model.embedding("fox").shape, model.tokenizer.class, model.tokenizer.respond_to?(:encode_batch)]
    RUBY
  end

  it "completes the vectors of texts and images" do
    photo = File.join(ProjectFiles::ROOT, "spec/fixtures/images/photo.png")
    { "CLIP" => ["clip", "embed_text('fox', as: :tensor)"],
      "ImageEmbeddingModel" => ["vit", "embed([#{photo.inspect}], as: :tensor)"] }.each do |name, (model, call)|
      source = TinyModels.path(model).inspect
      expect(printed("print Candle::#{name}.from_pretrained(#{source}, device: 'cpu').#{call}.respond_to?(:each)"))
        .to eq("true")
    end
  end

  it "is right for threads that name a class at the same time" do
    expect(printed(<<~RUBY)).to eq("[[true], nil]")
      gate = Queue.new
      threads = Array.new(8) { Thread.new { gate.pop; Candle::LLM.method_defined?(:generate) } }
      8.times { gate << true }
      print [threads.map(&:value).uniq, Candle.autoload?(:LLM)]
    RUBY
  end

  it "is all at once where a server is about to fork" do
    expect(printed(<<~RUBY)).to eq("[] true")
      Candle.eager_load!
      optional = %i[ActiveRecord CLI Jobs MCP ModelRegistry Server Worker]
      print Candle.constants.select { |name| Candle.autoload?(name) } - optional, " "
      loaded = $LOADED_FEATURES.size
      Candle::EmbeddingModel.from_pretrained(#{TinyModels.path("bert-sentence").inspect}, device: "cpu").embed("fox")
      print $LOADED_FEATURES.size == loaded
    RUBY
  end
end
