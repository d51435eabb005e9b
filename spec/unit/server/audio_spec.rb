# frozen_string_literal: true

RSpec.describe Candle::Server do
  before(:all) do
    @server = described_class.new(models: { "speech" => TinyModels.path("speech/whisper"),
                                            "labels" => TinyModels.path("speech/wav2vec2"),
                                            "llm" => TinyModels.path("decoders/llama") }, device: "cpu")
  end

  let(:server) { @server }
  let(:path) { File.expand_path("../../fixtures/audio/tones.wav", __dir__) }
  let(:direct) { server.models.fetch("speech").model.transcribe(path, language: "en") }
  let(:timed) { server.models.fetch("speech").model.transcribe(path, language: "en", timestamp_tokens: true) }

  def part(name, value, more = "")
    "--xYz\r\nContent-Disposition: form-data; name=\"#{name}\"#{more}\r\n\r\n#{value.b}\r\n".b
  end

  # A form as OpenAI's client sends it.
  def send_form(route, fields, file: File.binread(path), type: "multipart/form-data; boundary=xYz")
    parts = fields.map { |name, value| part(name, value) }
    parts << part("file", file, "; filename=\"a.wav\"\r\nContent-Type: audio/wav") if file
    post(server, "/v1/audio/#{route}", "#{parts.join}--xYz--\r\n".b, "CONTENT_TYPE" => type)
  end

  it "answers a form with text in every format" do
    fields = { model: "speech", language: "en" }
    answer = send_form("transcriptions", fields)
    expect([answer.status, answer.headers["content-type"]]).to eq([200, "application/json"])
    expect(answer.json["text"]).to eq(direct.text.strip)
    { "text" => "#{direct.text.strip}\n", "srt" => timed.to_srt, "vtt" => timed.to_vtt }.each do |format, wanted|
      expect(send_form("transcriptions", fields.merge(response_format: format)).text).to eq(wanted)
    end
    german = { **fields, language: "de", response_format: "verbose_json" }
    found = send_form("transcriptions", german).json
    expect(found.values_at("task", "language", "duration")).to eq(["transcribe", "german", 0.8])
    segment = found["segments"].first
    spoken = server.models.fetch("speech").model.transcribe(path, language: "de", timestamp_tokens: true)
    expect(found["segments"].flat_map { |one| one["tokens"] }).to eq(spoken.token_ids)
    expect(segment["compression_ratio"]).to eq(segment["text"].bytesize.fdiv(Zlib.deflate(segment["text"]).bytesize))
    words = send_form("transcriptions", german.merge("timestamp_granularities[]" => "word")).json
    expect(words["words"].first.keys).to eq(%w[word start end])
    expect([found.key?("words"), words.key?("segments")]).to eq([false, false])
    both = send_form("transcriptions", [*german, ["timestamp_granularities[]", "word"],
                                        ["timestamp_granularities[]", "segment"]]).json
    expect(both["words"]).to eq(words["words"])
    expect(both["segments"].map { |one| one["tokens"] }).to eq(found["segments"].map { |one| one["tokens"] })
    segments = send_form("transcriptions", german.merge("timestamp_granularities[]" => "segment")).json
    expect(segments).to eq(found)
    expect(send_form("transcriptions", { model: "labels" }).json["text"]).not_to be_empty
  end

  it "calls languages as OpenAI does" do
    source = File.read(File.expand_path("../../../ext/engine/src/tasks/transcribe/languages.rs", __dir__))
    known = source[/LANGUAGES.*?\];/m].scan(/\("([a-z]+)", "([^"]+)"\)/)
    expect(known.size).to be > 90
    expect(known.map { |code, _| Candle::Server::LanguageNames.of(code) }).to eq(known.map(&:last))
    expect([nil, "xx"].map { |code| Candle::Server::LanguageNames.of(code) }).to eq([nil, "xx"])
  end

  it "translates, and streams segments" do
    wanted = server.models.fetch("speech").model.transcribe(path, language: "de", task: :translate)
    translated = send_form("translations", { model: "speech", language: "de" })
    expect(translated.json["text"]).to eq(wanted.text.strip)
    answer = send_form("transcriptions", { model: "speech", language: "en", stream: "true" })
    expect([answer.status, answer.headers["content-type"]]).to eq([200, "text/event-stream"])
    events = answer.events
    expect(events.map { |event| event["type"] }).to eq(%w[transcript.text.delta transcript.text.done])
    expect(events.last["text"]).to eq(direct.text.strip)
  end

  it "says what is wrong with a form" do
    problems = {
      [{ model: "llm" }, {}] => 400, [{ model: "none" }, {}] => 404,
      [{ model: "speech" }, { file: nil }] => 400, [{ model: "speech" }, { file: "no audio" }] => 400,
      [{ model: "speech", response_format: "xml" }, {}] => 400, [{ model: "speech", temperature: "hot" }, {}] => 400,
      [{ model: "speech", language: "xx" }, {}] => 400,
      [{ model: "speech" }, { type: "application/json" }] => 400,
      [{ model: "speech" }, { type: "multipart/form-data" }] => 400
    }
    problems.each do |(fields, form), status|
      found = send_form("transcriptions", fields, **form)
      expect(found.status).to eq(status), "#{fields} #{form}: #{found}"
      expect(found.json["error"]["message"]).not_to be_empty
    end
  end
end
