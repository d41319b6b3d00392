// Example inputs of every tab, two per language, as fields.js writes them into the fields.

const SINGLE = (title, text) => ({ title, value: text });
const PAIR = (title, text, pair = null) => ({ title, value: { text, pair } });

const INPUT = {
  en: [
    PAIR("Playing", "I was playing with unbelievable concentration."),
    PAIR("A pair", "My dog is cute.", "He likes playing."),
  ],
  zh: [PAIR("下棋", "他们在公园里下棋，孩子们在旁边看。"), PAIR("句对", "我的狗很可爱。", "它喜欢玩耍。")],
};

export const EXAMPLES = {
  "fill-mask": {
    en: [
      SINGLE("A capital", "Paris is the [MASK] of France."),
      SINGLE("Two masks", "She opened the [MASK] and looked out at the [MASK]."),
    ],
    zh: [SINGLE("首都", "北京是中国的首[MASK]。"), SINGLE("两个掩码", "春天来了，[MASK]园里的花都[MASK]了。")],
  },
  classes: {
    en: [
      PAIR("A film", "A gripping, beautifully acted film that stays with you for days."),
      PAIR("A message", "Congratulations! You have won a free cruise. Call this number now to claim your prize."),
    ],
    zh: [
      PAIR("影评", "故事紧凑，演员出色，看完之后好几天都忘不了。"),
      PAIR("酒店", "房间又小又吵，早餐也凉了，下次不会再来。"),
    ],
  },
  pairs: {
    en: [
      PAIR("Music", "A man is playing a guitar on stage.", "Somebody is making music."),
      PAIR("Asleep", "Two children are running along the beach.", "Everybody is asleep."),
    ],
    zh: [
      PAIR("音乐", "一个男人正在台上弹吉他。", "有人在演奏音乐。"),
      PAIR("睡觉", "两个孩子在海滩上奔跑。", "大家都睡着了。"),
    ],
  },
  regression: {
    en: [
      PAIR("Alike", "A plane is taking off.", "An airplane is leaving the ground."),
      PAIR("Unlike", "A cook is slicing onions.", "The train was late again."),
    ],
    zh: [PAIR("相近", "飞机正在起飞。", "一架客机离开了地面。"), PAIR("无关", "厨师在切洋葱。", "火车又晚点了。")],
  },
  entities: {
    en: [
      SINGLE(
        "A visit",
        "In 1903 Marie Curie received the Nobel Prize in Stockholm together with Pierre Curie and Henri Becquerel.",
      ),
      SINGLE(
        "A company",
        "Siemens will open a new laboratory near Munich, said Anna Weber of the Bavarian Ministry of Science.",
      ),
    ],
    zh: [
      SINGLE("访问", "1972年，周恩来在北京会见了来访的美国总统尼克松。"),
      SINGLE("公司", "华为在深圳成立，后来把研究所开到了慕尼黑和巴黎。"),
    ],
  },
  answers: {
    en: [
      {
        title: "A bridge",
        value: {
          question: "When was the bridge opened?",
          context:
            "The Golden Gate Bridge spans the strait between San Francisco Bay and the Pacific Ocean. Work on it began in January 1933, and it was opened to the public on 27 May 1937. For twenty-seven years its main span was the longest in the world.",
        },
      },
      {
        title: "Not in there",
        value: {
          question: "Who paid for the library?",
          context:
            "The town library was built in 1911 of red brick. It has two reading rooms, and a garden where concerts are given in summer.",
        },
      },
    ],
    zh: [
      {
        title: "大桥",
        value: {
          question: "大桥是哪一年通车的？",
          context:
            "南京长江大桥横跨长江，是中国自行设计和建造的双层公路铁路两用桥。大桥于1960年动工，1968年全面建成通车，正桥长1576米。",
        },
      },
      {
        title: "文中没有",
        value: {
          question: "图书馆是谁出资建的？",
          context: "镇图书馆建于1911年，用红砖砌成，有两间阅览室和一个花园，夏天常在花园里举行音乐会。",
        },
      },
    ],
  },
  choices: {
    en: [
      {
        title: "At the door",
        value: {
          prompt: "He had forgotten his umbrella, and when he stepped out of the station",
          choices: ["it was raining hard.", "the umbrella said hello.", "the moon was made of stone."],
        },
      },
      {
        title: "A reason",
        value: {
          prompt: "He put an elephant into the fridge. That makes no sense, because",
          choices: [
            "an elephant is much bigger than a fridge.",
            "elephants are usually grey.",
            "elephants do not eat milk.",
          ],
        },
      },
    ],
    zh: [
      {
        title: "出站",
        value: {
          prompt: "他忘了带伞，走出车站时，",
          choices: ["外面正下着大雨。", "雨伞向他问好。", "月亮是石头做的。"],
        },
      },
      {
        title: "原因",
        value: {
          prompt: "他把大象放进了冰箱。这不合理，因为",
          choices: ["大象比冰箱大得多。", "大象通常是灰色的。", "大象不喝牛奶。"],
        },
      },
    ],
  },
  vectors: {
    en: [
      {
        title: "Four topics",
        value: {
          inputs: [
            "The cat sleeps on the warm sofa.",
            "A kitten is dozing in the sun.",
            "Our dog barks at the postman.",
            "The central bank raised interest rates.",
            "Shares fell after the inflation report.",
            "Investors worry about rising prices.",
            "Simmer the soup for twenty minutes.",
            "Add garlic and olive oil to the pan.",
            "Bake the bread until it is golden.",
            "The striker scored in the last minute.",
            "Their goalkeeper saved two penalties.",
          ],
          query: "What is happening on the stock market?",
        },
      },
      {
        title: "Same or not",
        value: {
          inputs: [
            "How do I open a file?",
            "What is the way to read a document from disk?",
            "The shop opens at nine.",
            "When does the store open?",
            "He filed his nails.",
          ],
          query: null,
        },
      },
    ],
    zh: [
      {
        title: "四个话题",
        value: {
          inputs: [
            "猫在暖和的沙发上睡觉。",
            "小猫在阳光下打盹。",
            "我家的狗冲着邮递员叫。",
            "央行上调了利率。",
            "通胀数据公布后股价下跌。",
            "汤用小火煮二十分钟。",
            "往锅里加蒜和橄榄油。",
            "前锋在最后一分钟进球。",
            "守门员扑出了两个点球。",
          ],
          query: "股市怎么了？",
        },
      },
      {
        title: "是否同义",
        value: {
          inputs: ["怎么打开文件？", "如何从磁盘读取文档？", "商店九点开门。", "店几点营业？", "他在修指甲。"],
          query: null,
        },
      },
    ],
  },
  search: {
    en: [SINGLE("Reading", "how to read a file line by line"), SINGLE("Time", "measure how long something takes")],
    zh: [SINGLE("读取", "怎样逐行读取文件"), SINGLE("时间", "测量用了多长时间")],
  },
  input: INPUT,
  attention: {
    en: [
      PAIR("It", "The animal didn't cross the street because it was too tired."),
      PAIR("A pair", "The cat sat on the mat.", "It purred and fell asleep."),
    ],
    zh: [PAIR("它", "小狗没有过马路，因为它太累了。"), PAIR("句对", "猫坐在垫子上。", "它打着呼噜睡着了。")],
  },
};
