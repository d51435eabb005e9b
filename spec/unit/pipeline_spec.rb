# frozen_string_literal: true

RSpec.describe Candle::Pipeline do
  photo = File.expand_path("../fixtures/images/photo.png", __dir__)

  def pipeline(task, model) = Candle.pipeline(task, TinyModels.path(model), device: "cpu")

  it "embeds texts and images" do
    embed = pipeline("feature-extraction", "bert-sentence")
    expect(embed.call("fox")).to eq(embed.model.embed("fox"))
    expect(%w[fox dog].map(&embed)).to eq(embed.model.embed(%w[fox dog]))
    look = pipeline("image-feature-extraction", "dinov2")
    expect(look.call(photo)).to eq(look.model.embed(photo))
    expect(embed.inspect).to eq("#<Candle::Pipeline feature-extraction #{TinyModels.path("bert-sentence")}>")
  end

  it "ranks documents" do
    rerank = pipeline(:reranking, "bert-reranker")
    hits = rerank.model.rerank("fox", %w[dog fox])
    expect(rerank.call("fox", %w[dog fox])).to eq(hits.map { |hit| hit.slice(:doc_id, :score) })
  end

  it "classifies texts" do
    classify = pipeline("sentiment-analysis", "bert-sequence")
    wanted = classify.model.classify("fox")
    expect(classify.call("fox")).to eq(wanted.first)
    expect(classify.call(["fox"])).to eq([wanted.first])
    expect(classify.call("fox", top_k: 2)).to eq(wanted.first(2))
  end

  it "classifies without training" do
    zero = Candle.pipeline("zero-shot-classification", TinyModels.path("bart-sequence"))
    found = zero.call("the dog", %w[animal city])
    wanted = zero.model.zero_shot("the dog", %w[animal city])
    expect(found).to eq(sequence: "the dog", labels: wanted.map { |one| one[:label] },
                        scores: wanted.map { |one| one[:score] })
    expect(zero.call(["the dog"], %w[animal city])).to eq([found])
  end

  it "finds entities, with words whole" do
    ner = pipeline("token-classification", "bert-token")
    text = "the dog live in Paris"
    wanted = ner.model.extract_entities(text, aggregation: :first, confidence_threshold: 0)
    expect(ner.call(text)).to eq(wanted.map do |entity|
      { entity_group: entity[:label], score: entity[:confidence], word: entity[:text], start: entity[:start],
        end: entity[:end] }
    end)
    expect(ner.call([text])).to eq([ner.call(text)])
    expect(ner.call(text, aggregation_strategy: :none).size).to be >= wanted.size
  end

  it "fills gaps" do
    fill = pipeline("fill-mask", "bert-masked")
    gap = "the #{fill.model.mask_token} dog"
    best = fill.model.fill(gap).first
    expect(fill.call(gap).first)
      .to eq(score: best[:score], token: best[:id], token_str: best[:token], sequence: best[:sequence])
    expect(fill.call([gap, gap]).map(&:size)).to eq([5, 5])
  end

  it "generates, with the prompt as a part of the text" do
    generate = pipeline("text-generation", "gguf-decoders/llama")
    greedy = { max_length: 4, temperature: 0 }
    text = generate.model.generate("the dog", **greedy)
    expect(generate.call("the dog", **greedy)).to eq([{ generated_text: "the dog#{text}" }])
    expect(generate.call("the dog", return_full_text: false, **greedy)).to eq([{ generated_text: text }])
    expect(generate.call(["the dog"], return_full_text: false, **greedy)).to eq([[{ generated_text: text }]])
    said = [{ role: "user", content: "hi" }]
    answer = generate.model.chat(said, **greedy)
    expect(generate.call(said, **greedy))
      .to eq([{ generated_text: [*said, { role: "assistant", content: answer }] }])
  end

  it "rewrites texts" do
    model = Candle::Seq2Seq.from_pretrained(TinyModels.path("seq2seq/t5"), device: "cpu")
    summarize = Candle.pipeline("summarization", model)
    expect(summarize.call("the dog")).to eq([{ summary_text: model.summarize("the dog") }])
    translate = Candle.pipeline("translation_en_to_de", model)
    expect(translate.call("the dog")).to eq([{ translation_text: model.translate("the dog", from: "en", to: "de") }])
    expect(Candle.pipeline("text2text-generation", model).call(["the dog"], max_length: 3))
      .to eq([{ generated_text: model.generate("the dog", max_length: 3) }])
  end

  it "labels and describes images" do
    classify = pipeline("image-classification", "vit-classifier")
    expect(classify.call(photo, top_k: 1)).to eq(classify.model.classify(photo, top_k: 1))
    zero = pipeline("zero-shot-image-classification", "clip")
    expect(zero.call(photo, %w[dog flower])).to eq(zero.model.classify_image(photo, %w[dog flower]))
    describe = pipeline("image-to-text", "llava")
    text = describe.model.describe(photo, max_length: 3)
    expect(describe.call(photo, max_length: 3)).to eq([{ generated_text: text }])
  end

  it "refuses unknown tasks, and tasks without a model" do
    expect { Candle.pipeline("sentiment-analisys") }
      .to raise_error(ArgumentError, /unknown task "sentiment-analisys"\. Did you mean sentiment-analysis\?.*Known are/)
    expect { Candle.pipeline("ner") }
      .to raise_error(ArgumentError, /ner has no default model: .* Candle\.pipeline\("ner", "owner.name"\)/)
    expect { Candle.pipeline(7) }.to raise_error(ArgumentError, /task must be a String or a Symbol/)
  end
end
